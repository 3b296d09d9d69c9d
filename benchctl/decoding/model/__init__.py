"""The target model: its families, layers, kernels and tokenizer. The only door to transformers."""
