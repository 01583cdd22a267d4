"""How rank 0 has all ranks do one thing of a restore, and hears what came of it on each."""

from collections.abc import Sequence

import msgspec

from harness.checkpoint.audit import manifest_of
from harness.checkpoint.follow import Do, Here, Report, Word, hear, tried
from harness.checkpoint.load import Found
from harness.checkpoint.manifest import Manifest, NewerError, Place
from harness.checkpoint.messages import Channel
from harness.checkpoint.reading import Reader
from harness.checkpoint.refusals import RestoreError
from harness.checkpoint.store import Store


class Assembly:
    """All ranks, as rank 0 sees them."""

    def __init__(
        self,
        store: Store,
        channel: Channel,
        reader: Reader,
        here: Here,
        world_size: int,
        deadline_s: float,
    ) -> None:
        self._store = store
        self._channel = channel
        self._reader = reader
        self._here = here
        self._world_size = world_size
        self._deadline_s = deadline_s
        self._words = 0
        self._nodes: Sequence[Sequence[int]] = ()

    def say(self, word: Word) -> int:
        """Tell all ranks what comes next; the word's number."""
        number = self._words
        self._channel.post(f"word/{number}", msgspec.json.encode(word))
        self._words += 1
        return number

    def nodes(self) -> Sequence[Sequence[int]]:
        """The ranks of each node; rank 0 is the first of the first."""
        if not self._nodes:
            ranks: dict[str, list[int]] = {}
            said = (msgspec.json.decode(word, type=Here) for word in self._all("here"))
            for here in sorted([self._here, *said], key=lambda here: here.rank):
                ranks.setdefault(here.node, []).append(here.rank)
            self._nodes = list(ranks.values())
        return self._nodes

    def read(self, place: Place) -> Report | None:
        """Let all ranks read `place`; the first report that it cannot be used, or None."""
        manifest: list[Manifest] = []
        alone = tried(0, lambda: manifest.append(self._manifest_of(place)))
        if not manifest:  # no need to have every rank find that out
            return alone
        nodes = self.nodes()
        number = self.say(Word(Do.READ, place.name, nodes))
        mine = tried(0, lambda: self._reader.read(place, number, nodes[0], manifest[0]))
        bad = self._worst(number, mine)
        self._channel.forget(f"arena/{number}/{ranks[0]}" for ranks in nodes)
        return bad

    def _manifest_of(self, place: Place) -> Manifest:
        """As audit has it. Raises `RestoreError` for one that is whole: walking past it would lose work."""
        try:
            return manifest_of(self._store, place)
        except NewerError as error:
            raise RestoreError(
                f"{place.name} in {self._store.root} was saved by a newer version of this library"
                f" ({error.reason}): resume with that version, or name an older step (--resume STEP)"
            ) from error

    def recall(self, place: Place) -> Report | None:
        """Let all ranks take their shares of `place` out of memory; likewise."""
        known: list[tuple[Manifest, bytes]] = []
        alone = tried(0, lambda: known.append(self._reader.memory.manifest(place)))
        if not known:
            return alone
        nodes = self.nodes()
        number = self.say(Word(Do.RECALL, place.name, nodes))
        mine = tried(0, lambda: self._reader.recall(place, number, nodes[0], known[0]))
        bad = self._worst(number, mine)
        self._channel.forget(f"arena/{number}/{ranks[0]}" for ranks in nodes)
        return bad

    def build(self, found: list[Found]) -> Report | None:
        """Let all ranks make their state of what was read; likewise."""
        number = self.say(Word(Do.BUILD))
        return self._worst(number, tried(0, lambda: found.append(self._reader.build())))

    def _worst(self, number: int, mine: Report) -> Report | None:
        """Of all reports on a word the first, by rank, of something that does not serve.

        One of an outage comes before all: another rank's damage may be of the same making.
        """
        others = [msgspec.json.decode(word, type=Report) for word in self._all(f"reports/{number}")]
        reports = sorted([mine, *others], key=lambda report: (not report.outage, report.rank))
        return next((it for it in reports if it.outage or it.rejection is not None), None)

    def _all(self, key: str) -> list[bytes]:
        """What every other rank has to say, in the order in which they said it."""
        words = [
            hear(self._channel, f"{key}/{place}", self._deadline_s)
            for place in range(1, self._world_size)
        ]
        self._channel.forget_list(key, self._world_size - 1)
        return words
