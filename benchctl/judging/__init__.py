"""From answers to scores: judges asked within a budget, every reply kept and paid for once."""
