"""Keys and values: the cache, the layout of rows, and the stream that runs the layers a row lacks."""
