"""What the frozen target made of each document, kept on disk: computed once for all methods, epochs and runs.

States depend on a document's tokens alone, so its hash finds them. A block per document lies in `states`; `index` says
where, and is written after it: what a kill tore off is cut off when the store is opened again.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, NamedTuple, Self, overload

import numpy as np
import torch
from torch import Tensor

from benchctl.decoding.modules.trainable import TeacherOutput, top_and_normalizer
from benchctl.errors import UserError
from benchctl.training.checkpoint import Notify, kept, locked
from benchctl.training.data.packing import FULL, Batch, Piece, batch_of, constant, fill_rows
from benchctl.training.modules.frozen import BatchMaker, FrozenTarget
from benchctl.training.modules.objective import head_rows

VERSION = 1
_ROOM = "free some space or give a smaller --store-gb"
_ENTRY = struct.Struct("<16sQII")  # hash of the tokens, place in `states`, tokens, crc32 of the block
_TEACHER_BYTES = 8  # bytes of a token's choice (int32) and log sum (float32), behind the states of a block


class Block(NamedTuple):
    """Where the states of so many tokens are."""

    place: int
    tokens: int
    crc: int


@dataclass(frozen=True)
class Live:
    """What there was no room for: it is computed each time. States [layers + 1, tokens, width], and predictions."""

    states: Tensor
    teacher: TeacherOutput


class TeacherStore:
    """The states of one target in the folder `states-..` below `folder`, in float16 and at most `limit` bytes.

    They are another's where the target's weights are in another precision. One run `writes`: others read what
    is there and what it adds.
    """

    def __init__(
        self, folder: Path, target: FrozenTarget, limit: int, writes: bool, notify: Notify = lambda notice: None
    ) -> None:
        info, dtype = target.info, str(target.model.dtype)
        identity = json.dumps([target.weights_sha256, info.layers, info.hidden_size, dtype, VERSION])
        self.folder = folder / f"states-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        self._layer_bytes, self.layers = 2 * info.hidden_size, info.layers + 1
        self.token_bytes = self.layers * self._layer_bytes + _TEACHER_BYTES
        self._limit, self._checked, self._damaged, self._notify = limit, set[bytes](), set[bytes](), notify
        self._lock: IO[str] | None = None
        with kept(self.folder, "states", _ROOM):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._writer(notify) if writes else None
            mode = "a+" if self._lock else "r"
            self._states, self._index = (self._open(name, mode) for name in ("states", "index"))
            self._blocks = self._read_index()

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def bytes_held(self) -> int:
        return sum(block.tokens for block in self._blocks.values()) * self.token_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        for file in (self._states, self._index, self._lock):
            if file is not None:
                file.close()

    def find(self, tokens: Tensor) -> Block | None:
        """Of a document's tokens [n], on a CPU. A block is checked when it is first asked for.

        None where there is none, and where the disk gives something else than was written: it is computed again.
        """
        key = _key(tokens)
        if key not in self._blocks and self._lock is None and self._grown:
            self._blocks = self._read_index()
        block = self._blocks.get(key)
        if block is not None and key not in self._checked:
            if zlib.crc32(self._read(block.place, block.tokens * self.token_bytes)) != block.crc:
                if key not in self._damaged:
                    self._notify(f"{self.folder}: the states of a document are damaged; they are computed again")
                self._damaged.add(key)
                del self._blocks[key]
                return None
            self._checked.add(key)
        return block

    def layer(self, block: Block | Live, index: int) -> Tensor:
        """[tokens, width] in float32: the residual that leaves layer `index`, 0 being the embedding."""
        if isinstance(block, Live):
            return block.states[index].float()
        size = block.tokens * self._layer_bytes
        read = self._read(block.place + index * size, size)
        return torch.from_numpy(np.frombuffer(read, np.float16).reshape(block.tokens, -1).astype(np.float32))

    def teacher(self, block: Block | Live) -> TeacherOutput:
        """[tokens] each."""
        if isinstance(block, Live):
            return block.teacher
        read = self._read(block.place + self.layers * block.tokens * self._layer_bytes, block.tokens * _TEACHER_BYTES)
        top_tokens, log_normalizers = (
            np.frombuffer(read, np.int32)[: block.tokens],
            np.frombuffer(read, np.float32)[block.tokens :],
        )
        return TeacherOutput(torch.from_numpy(top_tokens.astype(np.int64)), torch.from_numpy(log_normalizers.copy()))

    def add(self, tokens: Tensor, live: Live) -> Block | Live:
        """Writes a document's states; `live` itself where there is no room for them.

        Raises UserError when the disk is full, which loses nothing, and for states that float16 cannot hold.
        """
        key, size = _key(tokens), tokens.numel() * self.token_bytes
        if self._lock is None or key in self._blocks or self._end + size > self._limit:
            return live
        states = live.states.to(torch.float16)
        if not bool(states.isfinite().all()):
            raise UserError(
                "states_too_large",
                f"{self.folder}: the target has states beyond {torch.finfo(torch.float16).max:g}, which float16 cannot "
                "hold; leave the store out with --store-gb 0",
            )
        predictions = (live.teacher.top_tokens.to(torch.int32), live.teacher.log_normalizers.float())
        data = b"".join(part.contiguous().numpy().tobytes() for part in (states, *predictions))
        block = Block(self._end, tokens.numel(), zlib.crc32(data))
        with kept(self.folder, "states", _ROOM):
            try:
                _append(self._states, data)
                _append(self._index, _ENTRY.pack(key, *block))
            except OSError:
                self._cut()
                raise
        self._end += size
        self._entries += 1
        self._blocks[key] = block
        self._checked.add(key)
        return block

    def _writer(self, notify: Notify) -> IO[str] | None:
        """The lock of the one that writes; None for all others."""
        if not os.access(self.folder, os.W_OK):
            return None

        def busy() -> None:
            raise BlockingIOError

        try:
            return locked(self.folder / ".lock", busy)
        except BlockingIOError:
            notify(
                f"{self.folder}: another run is writing these states; this one reads them, and computes those that are "
                "missing each time"
            )
            return None

    @property
    def _grown(self) -> bool:
        """Whether the run that writes has added blocks."""
        return os.fstat(self._index.fileno()).st_size // _ENTRY.size > self._entries

    def _open(self, name: str, mode: str) -> FileIO:
        path = self.folder / name
        if os.access(self.folder, os.W_OK):
            path.touch()  # so that a run which opens it first sees what another one adds
        return FileIO(path if path.exists() else os.devnull, mode)

    def _read_index(self) -> dict[bytes, Block]:
        """What is there whole; the rest is cut off, unless another run is writing it."""
        self._index.seek(0)
        read = self._index.read()
        whole = read[: len(read) - len(read) % _ENTRY.size]
        there = os.fstat(self._states.fileno()).st_size
        blocks, self._end, self._entries = dict[bytes, Block](), 0, 0
        for key, *where in _ENTRY.iter_unpack(whole):
            block = Block(*where)
            if block.place != self._end or block.place + block.tokens * self.token_bytes > there:
                break
            blocks[key], self._end = block, block.place + block.tokens * self.token_bytes  # after a damaged one
            self._entries += 1
        if self._lock is not None:
            self._index.truncate(self._entries * _ENTRY.size)
            self._states.truncate(self._end)
        return blocks

    def _cut(self) -> None:
        """Back to the last block that is whole."""
        for file, end in ((self._states, self._end), (self._index, self._entries * _ENTRY.size)):
            os.truncate(file.fileno(), end)

    def _read(self, place: int, size: int) -> bytes:
        return os.pread(self._states.fileno(), size, place)


def _append(file: FileIO, data: bytes) -> None:
    """All of it: a disk that is nearly full takes a part."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _key(tokens: Tensor) -> bytes:
    return hashlib.blake2b(tokens.to(torch.int32).numpy().tobytes(), digest_size=16).digest()


class StoredStates(Sequence[Tensor]):
    """The residuals of a batch, [rows, n, width] each, read when asked for; those of padding are 0."""

    def __init__(self, store: TeacherStore, blocks: Sequence[Block | Live], real: Tensor, like: Tensor) -> None:
        """`blocks` of the documents row by row, `real` [rows, n] where they stand; as `like` in kind and width."""
        self._store, self._blocks, self._real, self._like = store, blocks, real, like
        self._read: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return self._store.layers

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        layer = range(len(self))[index]
        if layer not in self._read:
            rows = torch.cat([self._store.layer(block, layer) for block in self._blocks]).to(self._like)
            state = rows.new_zeros(*self._real.shape, rows.shape[-1])
            state[self._real] = rows
            self._read[layer] = state
        return self._read[layer]


class StoredBatches(BatchMaker):
    """A BatchMaker whose target runs only for documents that are not in the store yet, always in its own precision."""

    def __init__(self, target: FrozenTarget, store: TeacherStore) -> None:
        super().__init__(target.model, target.device)
        self._store = store

    def _teacher_pass(self, batch: Batch) -> tuple[Sequence[Tensor], TeacherOutput | None]:
        real, tokens = batch.documents >= 0, batch.tokens.cpu()
        starts = (batch.positions[real] == 0).nonzero()[:, 0].tolist()
        documents = torch.tensor_split(tokens[real.cpu()], starts[1:])
        blocks: list[Block | Live | None] = [self._store.find(document) for document in documents]
        missing = [number for number, block in enumerate(blocks) if block is None]
        for number, live in zip(missing, self._live([documents[number] for number in missing], batch), strict=True):
            blocks[number] = self._store.add(documents[number], live)
        found = [block for block in blocks if block is not None]
        states = StoredStates(self._store, found, real, self._target.get_input_embeddings().weight)
        return states, self._teacher_of(found, real)

    def _teacher_of(self, blocks: Sequence[Block | Live], real: Tensor) -> TeacherOutput:
        parts = zip(*(self._store.teacher(block) for block in blocks), strict=True)
        top_tokens, log_normalizers = (torch.cat(part).to(real.device) for part in parts)
        return TeacherOutput(
            top_tokens.new_zeros(real.shape).masked_scatter(real, top_tokens),
            log_normalizers.new_zeros(real.shape).masked_scatter(real, log_normalizers),
        )

    def _live(self, documents: Sequence[Tensor], like: Batch) -> Iterator[Live]:
        """What the target makes of these documents now, packed anew into passes as large as `like`."""
        rows, width = like.tokens.shape
        pieces = [Piece(each.numpy().astype(np.uint32), constant(each.numel(), FULL)) for each in documents]
        order = {id(piece): number for number, piece in enumerate(pieces)}
        packed = fill_rows(pieces, width)
        made: dict[int, Live] = {}
        for start in range(0, len(packed), rows):
            part = packed[start : start + rows]
            batch = batch_of(part, width, 0).to(self._device)
            with torch.autocast(self._device.type, enabled=False):
                states = self._states(batch)
                teacher = top_and_normalizer(head_rows(self._target, None), self._norm(states[-1]))
            for line, row in enumerate(part):
                end = 0
                for piece in row:
                    place, end = np.s_[line, end : end + len(piece.tokens)], end + len(piece.tokens)
                    own = torch.stack([state[place] for state in states]).cpu()
                    made[order[id(piece)]] = Live(
                        own, TeacherOutput(teacher.top_tokens[place].cpu(), teacher.log_normalizers[place].cpu())
                    )
        return (made[number] for number in range(len(pieces)))
