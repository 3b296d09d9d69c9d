"""Every reported number. A file here that assigns a `Metric` adds it, and its column, to every comparison."""
