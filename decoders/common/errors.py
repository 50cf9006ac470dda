"""The one exception type a user meets: a sentence that says what was wrong and what to do."""


class DraftpickError(Exception):
    """A mistake that the user can mend; the command line prints it and exits with code 2."""


class Cancelled(Exception):
    """The client has disconnected; the answer ended early."""


class NotANumber(DraftpickError):
    """A model's scores of the next token, or its embedding of a prompt, are nan."""

    def __init__(self, what: str = "the model's scores of the next token") -> None:
        super().__init__(
            f"{what} are no numbers (nan), so that there is no answer to this prompt; its weights "
            "are damaged or its sums overflow: fetch it again, or use --dtype bfloat16 or float32"
        )


class ContextTooLong(DraftpickError):
    """The prompt, or the prompt with its answer, does not fit the model's context."""

    def __init__(self, prompt_tokens: int, max_new_tokens: int, context: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and asks for {max_new_tokens} more, but the "
            f"context holds {context}; shorten the prompt, lower --max-new-tokens, or raise "
            "--context where the model holds more"
        )


class GrammarError(DraftpickError):
    """A grammar that cannot be compiled, or that no token of the target can follow."""


class StillCompiling(DraftpickError):
    """A grammar was not compiled, as those of others have not ended; asked again it may be."""


class ArmDown(DraftpickError):
    """An arm that cannot answer now and may again later; nothing of an answer was given out.

    reason: in the words of what failed.
    pause_s: seconds before it is worth asking again.
    """

    def __init__(self, arm: str, reason: str, pause_s: float) -> None:
        super().__init__(
            f"the arm {arm!r} does not answer ({reason}); it is asked again in {pause_s:.0f} s"
        )
        self.arm, self.reason, self.pause_s = arm, reason, pause_s


class UpstreamError(DraftpickError):
    """A server that is an arm gave no answer, for no fault of the request. arm: its name."""

    def __init__(self, arm: str, message: str) -> None:
        super().__init__(message)
        self.arm = arm


class UpstreamBroke(UpstreamError):
    """It broke off in the middle of an answer, the beginning of which was given out."""


class UpstreamRefused(UpstreamError):
    """It refuses every request, for its key, its address or the model's name."""


class NoSuchName(DraftpickError):
    """An unknown arm, task, model, policy or reward; the message lists the names that exist."""

    def __init__(self, kind: str, name: str, known: "list[str] | tuple[str, ...]") -> None:
        listed = ", ".join(sorted(known)) or "none"
        super().__init__(f"unknown {kind} {name!r}; known: {listed}")


class Damaged(DraftpickError):
    """A file that is not what its manifest says (wrong hash, cut short)."""
