"""How other engines are run as labels: base class, server processes, HTTP client, and the ledger of their answers."""
