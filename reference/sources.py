"""How often each source of the reference corpus is read, in the main stage and in the late one.

A weight is the number of times a document is read in one pass: 0.25 reads one in four, 3 reads each three times.
The late stage ends the training with what the model is to sound like: short, clean answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

MAIN, LATE = 0, 1


@dataclass(frozen=True)
class SourceRule:
    """The weights of the sources that match `pattern`; longer answers are cut at a sentence."""

    pattern: str
    main: float
    late: float
    licence: str
    answer_chars: int | None = None


OPENSTAX = "CC BY 4.0; OpenStax, Rice University, openstax.org"
EBOOKS = "public domain / CC0; Standard Ebooks"
GUTENBERG = "public domain in the USA; GITenberg (Project Gutenberg)"
GPTEACHER = "MIT; teknium1/GPTeacher, text written with GPT-4"
P3 = "T0/P3 templates, Apache-2.0; underlying set "

RULES = (
    SourceRule("tasks", 0.75, 0.5, "Apache-2.0; made by reference/tasks.py"),
    SourceRule("synthetic", 1.0, 1.0, "Apache-2.0; made by reference/synthetic.py"),
    SourceRule("stories", 2.0, 2.0, "CDLA-Sharing-1.0; TinyStories with a request put before each", 700),
    SourceRule("tinystories_sample", 1.0, 0.0, "CDLA-Sharing-1.0; 1,000 TinyStories from ToonTalk/jlens-tinystories"),
    SourceRule("gpteacher_roleplay", 3.0, 4.0, GPTEACHER, 800),
    SourceRule("gpteacher_codegen", 1.0, 0.7, GPTEACHER, 700),
    SourceRule("gsm8k_train", 1.0, 0.5, "MIT; openai/grade-school-math"),
    SourceRule("llms_from_scratch", 5.0, 8.0, "Apache-2.0; rasbt/LLMs-from-scratch"),
    SourceRule("chatterbot_corpus", 3.0, 6.0, "BSD-3-Clause; gunthercox/chatterbot-corpus"),
    SourceRule("self_instruct_seed_tasks", 4.0, 5.0, "Apache-2.0; yizhongw/self-instruct", 800),
    SourceRule("data_science_interviews", 3.0, 3.0, "CC BY 4.0; alexeygrigorev/data-science-interviews", 700),
    SourceRule("openstax_sections", 1.5, 1.5, OPENSTAX, 600),
    SourceRule("openstax_glossary", 3.0, 4.0, OPENSTAX),
    SourceRule("factbook", 0.4, 0.3, "public domain; factbook/factbook.json (CIA World Factbook)", 500),
    SourceRule("tldr", 0.06, 0.03, "CC BY 4.0; tldr-pages/tldr"),
    SourceRule("p3/common_gen", 0.5, 0.3, P3 + "MIT"),
    SourceRule("p3/commonsense_qa", 0.5, 0.3, P3 + "MIT"),
    SourceRule("p3/cosmos_qa", 0.3, 0.0, P3 + "CC BY 4.0"),
    SourceRule("p3/adversarial_qa", 0.2, 0.05, P3 + "CC BY-SA 4.0"),
    SourceRule("p3/duorc", 0.1, 0.0, P3 + "MIT"),
    SourceRule("p3/kilt_tasks_hotpotqa", 0.1, 0.0, P3 + "CC BY-SA 4.0"),
    SourceRule("p3/paws", 0.1, 0.0, P3 + "free use"),
    SourceRule("p3/wiki_bio", 0.0, 0.0, P3 + "CC BY-SA 3.0"),
    SourceRule("p3/dbpedia_14", 0.0, 0.0, P3 + "CC BY-SA 3.0"),
    SourceRule("p3/*", 0.1, 0.0, P3 + "CC BY 4.0"),
    SourceRule("openstax/*", 0.5, 0.15, OPENSTAX),
    SourceRule("standardebooks/lewis-carroll*", 1.0, 0.2, EBOOKS),
    SourceRule("standardebooks/l-frank-baum*", 1.0, 0.2, EBOOKS),
    SourceRule("standardebooks/frances-hodgson*", 1.0, 0.2, EBOOKS),
    SourceRule("standardebooks/j-m-barrie*", 1.0, 0.2, EBOOKS),
    SourceRule("standardebooks/kenneth-grahame*", 1.0, 0.2, EBOOKS),
    SourceRule("standardebooks/charles-darwin*", 0.3, 0.0, EBOOKS),
    SourceRule("standardebooks/*", 0.25, 0.0, EBOOKS),
    SourceRule("gitenberg/15122", 1.0, 0.2, GUTENBERG),
    SourceRule("gitenberg/*", 0.3, 0.0, GUTENBERG),
    SourceRule("rust_book", 0.1, 0.0, "MIT or Apache-2.0; rust-lang/book"),
    SourceRule("tinyshakespeare", 0.0, 0.0, "public domain; karpathy/char-rnn"),
    SourceRule("wikitext2*", 0.0, 0.0, "CC BY-SA 3.0; WikiText-2 from pytorch/examples"),
)
UNKNOWN = SourceRule("*", 1.0, 1.0, "not stated")


def rule_for(source: str) -> SourceRule:
    """The first rule whose pattern matches; a source of one's own is read once a pass."""
    return next((rule for rule in RULES if fnmatchcase(source, rule.pattern)), UNKNOWN)


def weight(source: str, stage: int) -> float:
    """How many times a document of `source` is read in one pass of `stage`."""
    rule = rule_for(source)
    return rule.main if stage == MAIN else rule.late


def shorten(text: str, limit: int | None) -> str:
    """`text`, cut after its last paragraph or sentence that ends within `limit` characters."""
    if limit is None or len(text) <= limit:
        return text
    head = text[:limit]
    cut = max(head.rfind("\n\n"), head.rfind(". ") + 1, head.rfind(".\n") + 1)
    return head[:cut].rstrip() if cut > limit // 4 else head
