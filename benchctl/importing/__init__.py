"""Published answers and judgements of other programs as records of benchctl."""

from typing import Literal, get_args

Format = Literal["spec-bench", "eagle", "medusa", "rest", "fastchat"]
FORMATS: tuple[Format, ...] = get_args(Format)
