"""Published answers and judgements of other programs, and requests of serving benchmarks, as records of benchctl."""

from typing import Literal, get_args

Format = Literal["spec-bench", "eagle", "medusa", "rest", "fastchat", "vllm-bench", "aiperf", "guidellm"]
FORMATS: tuple[Format, ...] = get_args(Format)
