"""The versioned JSONL records: their schema, how they are written and how they are read."""
