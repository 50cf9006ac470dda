"""Reading prompts: what is held or kept of the same beginning is not read again, and others may go
on between two parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..earlier.prefixes import Owner, PrefixStore, agreeing
from ..protocols import Backend, CopyableBackend, PartedBackend, RequestScope, ReusingBackend
from ..records import Prefilled

PREFILL_CHUNK = 256  # tokens of a prompt that are read before others go on


class PromptReader:
    """Reads prompts into one backend, a target or a model that drafts.

    It remembers what the backend holds, and looks up what the scope's store keeps. A position that
    is not read again was computed in another pass, in which its last bits may have come out
    otherwise; where the scope is `exact`, in the very pass in which it would be computed now.

    translate: a prompt in the backend's own ids, where these are others.
    counts: whether the store is told how much was saved, as of a target.
    """

    def __init__(
        self,
        backend: Backend,
        translate: Callable[[list[int]], list[int]] | None = None,
        counts: bool = False,
    ) -> None:
        self._backend, self._translate, self._counts = backend, translate, counts
        self._since, self._ids = 0, list[int]()
        self._scope = RequestScope(user=None)  # of the last prompt
        self._whole = 0  # tokens of the last prompt that were read in whole parts

    # -- what is held -------------------------------------------------------------------------

    def holds(self, ids: Sequence[int]) -> None:
        """Its positions are those of `ids`, since it last read a prompt."""
        self._since = getattr(self._backend, "prompts_read", 0)
        self._ids = list(ids[: self._backend.length])

    def held(self, prompt_ids: Sequence[int], user: str | None) -> int:
        """How many of a prompt's first tokens it holds, read for this user; never the last one,
        which is always read."""
        backend = self._backend
        if not isinstance(backend, ReusingBackend) or self._since != backend.prompts_read:
            return 0  # it was used without this reader
        if user is None or user != self._scope.user:
            return 0
        most = min(len(self._ids), backend.length, len(prompt_ids) - 1)
        found = agreeing(self._ids[:most], list(prompt_ids[:most]))
        return found if found >= backend.reach else 0

    # -- reading ------------------------------------------------------------------------------

    def read(self, prompt_ids: list[int], scope: RequestScope) -> Prefilled:
        """Read a prompt for the request's user."""
        backend = self._backend
        own = prompt_ids if self._translate is None else self._translate(prompt_ids)
        held = self.held(prompt_ids, scope.user) if scope.reuse else 0
        self._ids, self._scope = [], scope
        if isinstance(backend, PartedBackend):
            part = backend.part if scope.pause is None else min(backend.part, PREFILL_CHUNK)
            if scope.exact:
                held = min(held, self._whole) // part * part
                held = held if held >= backend.reach else 0
            kept = _kept(backend, scope, own, part)
            pauses = _Pauses(backend, scope, len(own), part, kept, tells=self._counts)
            before = backend.prompts_read
            try:
                prefilled = backend.prefill(own, held, pauses.between, part)
            finally:
                if backend.prompts_read != before:  # also of a part, where it was stopped
                    self._whole = max(0, backend.length - 1) // part * part
                    self.holds(prompt_ids)
            cached = held + (0 if kept is None else kept.copied)
        elif isinstance(backend, ReusingBackend):
            cached = 0 if scope.exact else held
            prefilled = backend.prefill(own, cached) if cached else backend.prefill(own)
            self.holds(prompt_ids)
        else:
            prefilled, cached = backend.prefill(own), 0
        if self._counts and scope.prefixes is not None and scope.reuse and scope.user is not None:
            scope.prefixes.counted(len(own), cached)
        return replace(prefilled, cached=cached) if cached else prefilled

    def keep(self, ids: Sequence[int], scope: RequestScope) -> None:
        """What it holds, the positions of `ids`, may serve the later prompts of the scope's
        user."""
        self.holds(ids)
        self._scope, backend = scope, self._backend
        if isinstance(backend, CopyableBackend) and not scope.exact:
            own = self._ids if self._translate is None else self._translate(self._ids)
            kept = _kept(backend, scope, own, backend.part)
            if kept is not None:
                kept.keep()

    def forget(self) -> None:
        """What was read last is of no use to anybody."""
        self._ids = []
        store, user, backend = self._scope.prefixes, self._scope.user, self._backend
        if store is not None and isinstance(backend, CopyableBackend) and user is not None:
            store.forget(id(backend.weights), user)


class _Pauses:
    """Between the parts of one prompt.

    kept: what is kept of such prompts, None where nothing is.
    tells: whether the scope's watch is told how far it is; else that the target's reading is over.
    """

    def __init__(
        self,
        backend: Backend,
        scope: RequestScope,
        total: int,
        part: int,
        kept: _Kept | None,
        tells: bool,
    ) -> None:
        self._backend, self._scope, self._total, self._part = backend, scope, total, part
        self._kept, self._tells = kept, tells

    def between(self) -> None:
        """Called between the parts of a prompt."""
        if self._kept is not None:
            self._kept.keep()
        at, total = self._backend.length, self._total
        if self._scope.watch is not None:
            self._scope.watch(at if self._tells else total, total)
        if at == total:
            return
        if self._scope.pause is not None:
            self._scope.pause(min(self._part, total - at))  # others may read the same meanwhile
        if self._kept is not None:
            self._kept.copy_in()


class _Kept:
    """What a store keeps of one prompt, for the backend that reads it.

    by: positions that are kept together or not at all.
    copied: tokens that came from the store.
    """

    def __init__(
        self,
        backend: CopyableBackend,
        store: PrefixStore,
        owner: Owner,
        ids: Sequence[int],
        by: int,
    ) -> None:
        self._backend, self._store, self._owner = backend, store, owner
        self._ids, self._by = ids, by
        self._told = self.copied = 0

    def keep(self) -> None:
        """Let the store have what was read."""
        backend = self._backend
        end = backend.length // self._by * self._by
        if end <= self._told:
            return
        self._told = end
        each, ids = backend.position_bytes, self._ids[:end]
        if self._store.match(self._owner, ids) < backend.reach:
            return  # what lies between is no longer whole
        self._store.follow(backend.weights)
        try:
            self._store.keep(self._owner, ids, backend.copy_out, each, self._by)
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and "memory" not in str(error):
                raise
            self._store.clear()  # the answer needs what there is

    def copy_in(self) -> None:
        """Let the backend have what the store has beyond, but for the last token."""
        backend, most = self._backend, len(self._ids) - 1
        known = self._store.match(self._owner, self._ids[:most]) // self._by * self._by
        if known <= backend.length:
            return
        for at, copies in self._store.take(self._owner, self._ids[:known]):
            here, end = backend.length, at + copies[0].shape[-2]
            if here < end:
                backend.copy_in([copy[..., here - at :, :] for copy in copies])
                self.copied += end - here


def _kept(backend: Backend, scope: RequestScope, ids: Sequence[int], part: int) -> _Kept | None:
    """None where nothing is kept, for the scope's user and of such a backend."""
    store = scope.prefixes
    if store is None or not scope.reuse or scope.user is None:
        return None
    if not isinstance(backend, CopyableBackend):
        return None
    layout = (*backend.layout, *((part,) if scope.exact else ()))
    owner = Owner(id(backend.weights), layout, scope.user)
    return _Kept(backend, store, owner, ids, part if scope.exact else 1)
