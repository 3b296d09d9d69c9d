"""Labels of version 0.1 that have another name now: recorded files and command lines may still contain them."""

import sys
from functools import cache

# Options of version 0.1 that chose between set-ups of one method, which are methods of their own now.
_RENAMED = {
    ("m2r2", "mode=speculative"): "m2r2",
    ("m2r2", "mode=dynamic"): "m2r2_dynamic",
    ("m2r2", "mode=aot"): "m2r2_prefetch",
}


@cache
def current_label(label: str) -> str:
    """The label as this version writes it. Prints each new name once per process on stderr.

    `m2r2[mode=dynamic,threshold=0.3]` becomes `m2r2_dynamic[threshold=0.3]`.
    """
    name, _, text = label.partition("[")
    options = text.removesuffix("]").split(",")
    for option in options:
        if new_name := _RENAMED.get((name, option)):
            kept = ",".join(other for other in options if other != option)
            new = f"{new_name}[{kept}]" if kept else new_name
            sys.stderr.write(f"Note: {label} is now called {new}.\n")
            return new
    return label
