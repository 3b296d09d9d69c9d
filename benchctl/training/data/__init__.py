"""Training text: corpora, chats, packing."""
