"""How drafts are made: trees, their growth, and where they end."""
