"""Expert offloading without tensors and without a clock: what the real run and the simulator share."""
