"""The server of the package xllamacpp with the options of llama-server that engines/llama_cpp.py uses.

`python llama_server.py -m FILE --port PORT ...`. A file of its own without imports of benchctl: it runs in a process of
its own, and its memory is that of the engine.
"""

import argparse
import threading

import xllamacpp


def parameters(arguments: argparse.Namespace) -> xllamacpp.CommonParams:
    """The settings that these arguments give llama.cpp."""
    found = xllamacpp.CommonParams()
    found.model.path, found.hostnames, found.port = arguments.model, [arguments.host], arguments.port
    found.n_parallel, found.n_ctx = arguments.parallel, arguments.ctx_size
    found.cache_prompt, found.cache_ram_mib, found.ui = arguments.cache_prompt, arguments.cache_ram, arguments.webui
    found.cpuparams.n_threads, found.cpuparams.poll = arguments.threads, arguments.poll
    found.cache_type_k, found.cache_type_v = map(_type, (arguments.cache_type_k, arguments.cache_type_v))
    speculative = found.speculative
    name = f"COMMON_SPECULATIVE_TYPE_{arguments.spec_type.replace('-', '_').upper()}"
    speculative.types = [getattr(xllamacpp.common_speculative_type, name)]
    speculative.draft.mparams.path, speculative.draft.n_max = arguments.model_draft, arguments.spec_draft_n_max
    types = (arguments.cache_type_k_draft, arguments.cache_type_v_draft)
    speculative.draft.cache_type_k, speculative.draft.cache_type_v = map(_type, types)
    ngram = speculative.ngram_simple
    ngram.size_n, ngram.size_m = arguments.spec_ngram_simple_size_n, arguments.spec_ngram_simple_size_m
    return found


def _type(name: str) -> object:
    return getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}")


def parser() -> argparse.ArgumentParser:
    """The options, with llama-server's names and defaults."""
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("-m", dest="model", required=True)
    options.add_argument("-md", dest="model_draft", default="")
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--no-cache-prompt", dest="cache_prompt", action="store_false")
    options.add_argument("--no-webui", dest="webui", action="store_false")
    options.add_argument("--spec-type", default="none")
    for flag, name in (("-ctk", "k"), ("-ctv", "v"), ("-ctkd", "k_draft"), ("-ctvd", "v_draft")):
        options.add_argument(flag, dest=f"cache_type_{name}", default="f16")
    for flag, default in (("--port", 8080), ("--parallel", 1), ("--cache-ram", 0), ("--poll", 50)):
        options.add_argument(flag, type=int, default=default)
    options.add_argument("-t", dest="threads", type=int, default=1)
    options.add_argument("-c", dest="ctx_size", type=int, default=0)
    options.add_argument("--spec-draft-n-max", type=int, default=16)
    options.add_argument("--spec-ngram-simple-size-n", type=int, default=12)
    options.add_argument("--spec-ngram-simple-size-m", type=int, default=48)
    return options


if __name__ == "__main__":
    server = xllamacpp.Server(parameters(parser().parse_args()))
    threading.Event().wait()
