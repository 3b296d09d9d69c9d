"""Published answers and judgements of other programs as records of benchctl."""
