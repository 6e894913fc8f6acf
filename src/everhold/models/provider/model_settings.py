"""What a question may ask of a model beside its words.

Options are part of the question and are kept with it. Headers may hold secrets, so they are none:
whoever opens the runtime gives them, with `Model(…, extra_headers={…})`.
"""

from __future__ import annotations

from typing import Final

from everhold.errors import AnswerFailed

#: What every provider is told, as far as it knows it.
MODEL_OPTIONS: Final = {
    "cache": (
        "mark what repeats, for providers that charge less for it; on by default in conversations"
    ),
    "extra_body": "more fields of the request, as the provider calls them",
    "frequency_penalty": "avoid words the more often they were used",
    "logit_bias": "make single tokens more or less likely",
    "parallel_tool_calls": "whether several tools may be called at once",
    "presence_penalty": "avoid words that were used",
    "seed": "answer alike, where the provider can",
    "service_tier": "`auto`, `default`, `flex` or `priority`",
    "stop_sequences": "texts that end the answer",
    "temperature": "how freely words are chosen",
    "thinking": "`true`, `false`, or how much: `minimal`, `low`, `medium`, `high`",
    "tool_choice": "`auto`, `none`, `required`, or a list of names",
    "top_k": "how many words are considered",
    "top_p": "how likely the words together are that are considered",
}
#: How the options begin that only one provider has.
PROVIDER_PREFIXES: Final = ("anthropic_", "google_", "openai_")
#: Options that are for this side.
LOCAL_OPTIONS: Final = ("model", "tools")


def refuse_unknown_option(name: str) -> None:
    """Raise `AnswerFailed` for an option that no provider knows."""
    if name in MODEL_OPTIONS or name.startswith(PROVIDER_PREFIXES):
        return
    from difflib import get_close_matches

    close = get_close_matches(name, MODEL_OPTIONS, 1)
    meant = (
        f"did you mean {close[0]}?" if close else "what only your server knows goes into extra_body"
    )
    raise AnswerFailed(f"there is no option {name!r} for a model; {meant}", "bad_option")
