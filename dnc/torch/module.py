"""`Module`: a compiled program as an `nn.Module`.

In: a build; then batches of structures, and tensors for what the program pulls. Out: tensors: the loss,
pushed values, declared outputs. Guaranteed: its parameters are those of the kernel, in the kernel's
memory where that can be seen as a tensor; any optimizer of PyTorch trains them; every mistake is a
`dnc.DiagnosticError` that names what is wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from dnc.api import Batch as Samples
from dnc.api import Data, Model, load
from dnc.api.arguments import are_numbers, batches_of, check_whole
from dnc.api.turns import Turn, in_turn
from dnc.diagnostics import fail
from dnc.ir.forest import Ints
from dnc.ir.isa import packed_parameters
from dnc.ir.noise import NONE
from dnc.ir.sparse import pruned
from dnc.runtime.batches import distinct
from dnc.runtime.data import Dataset, Vocabulary, has_vocabulary, vocabularies_from_json, vocabularies_to_json
from dnc.runtime.outside import pulled_fields, pushed_values
from dnc.runtime.phases import PREDICT
from dnc.torch import memory
from dnc.torch.arguments import Pulled, check_pulled
from dnc.torch.autograd import LOSS, Batch, Call
from dnc.torch.encoded import PREDICTION, PURPOSES, TRAINING, VALUES, BatchEncoder, Encoded, as_lists
from dnc.torch.gaps import refuse_fused_steps_on_gaps
from dnc.torch.launches import BatchOf, Launches
from dnc.torch.memory import Memory
from dnc.torch.uncompiled import uncompiled

# What a module takes: samples, their numbers, a batch that was encoded ahead; None for all attached samples.
Given: TypeAlias = Samples | Tensor | Encoded | None
# Of a module what opening a build makes; a copy opens it again.
OPENED = ("dnc", "sparse", "_memory", "_launches", "_pulled", "_outputs", "_frozen")


class Module(nn.Module):
    """A program that PyTorch differentiates.

    `net(batch, pulled)` gives what is learned from: the loss and the pushed values. `net.predict` gives the
    declared outputs. A batch is a list of samples, or of numbers of samples of the data that were
    attached last.
    """

    def __init__(
        self,
        build: str | Path,
        data: Data | None = None,
        *,
        device: str | torch.device | None = None,
        checkpoint: str | Path | None = None,
        seed: int = 1,
        sparse: bool = False,
        min_count: int = 1,
        memory_bytes: int | None = None,
        encoders: int | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
    ) -> None:
        """Opens a build on a device: "cpu", "cuda", "vm"; None takes the best there is.

        "cuda" is PyTorch's current GPU, "cuda:1" one of several (each has its own module).
        data: training data, which give the vocabulary; or `checkpoint` has it; a program without words
        and classes needs neither. sparse: gradients of tables are sparse tensors, as in nn.Embedding.
        seed: of the first weights, and of dropout. encoders: other processes that encode `batches`, 0 for
        none; None for a few, as cores are there.
        """
        super().__init__()
        if not isinstance(vocabularies, Mapping | None):
            raise fail(f"vocabularies is {vocabularies!r}, expected one by name, as `Model.vocabularies`")
        model = load(build, _device_of(device), seed=seed, memory_bytes=memory_bytes, encoders=encoders)
        if model.backend.devices > 1:
            raise fail(
                f"device {device}: a module is on one", "several are PyTorch's DistributedDataParallel's"
            )
        if packed := packed_parameters(model.plan):
            raise fail(
                f"{build}: keeps {', '.join(packed)} packed, for inference; PyTorch sees whole matrices",
                "compile it for training, or open it with dnc.load",
            )
        backend: Any = model.backend
        if hasattr(backend, "lend"):
            gpu = backend.device.ordinal
            backend.lend(partial(memory.allocate, gpu), partial(memory.idle, gpu))
            backend.use_stream(memory.current_stream(gpu))
        self.dnc, self.sparse = model, sparse
        if checkpoint is not None:
            model.restore(checkpoint)
        elif vocabularies is not None:
            model.start(dict(vocabularies))
        elif data is None and has_vocabulary(model.program):
            raise fail(
                f"{build}: the words of model {model.build.model} are not known",
                "give data or a checkpoint: Module(build, 'train.jsonl'), Module(build, checkpoint=...)",
            )
        if data is not None:
            model.attach(data, min_count=min_count)
        self._memory = Memory(model.session)
        self._launches = Launches(model, self._memory, self._own)
        self._pulled = {
            name: int(model.program.struct(space.struct).fields[field].width)
            for name, (space, field) in pulled_fields(model.program).items()
        }
        self._outputs = (*((LOSS,) if _has_loss(model) else ()), *pushed_values(model.program))
        self._frozen = [p.name for p in model.program.parameters if not p.trained]
        self._make_parameters()
        self._memory.bring_in(self._values())
        model.origin = model.origin.but("began with parameters that PyTorch has")
        refuse_fused_steps_on_gaps()

    def _make_parameters(self) -> None:
        for name, place in self._memory.places.items():
            # `.data`: what else is written there is no change of the parameter.
            values = place.view(self._memory.floats, self._memory.first(name)).data
            trained = self.dnc.plan.trains and place.parameter.trained
            try:
                self.register_parameter(name, nn.Parameter(values, requires_grad=trained))
            except KeyError:
                raise fail(f"a parameter of an nn.Module cannot be called '{name}'; rename it") from None

    def _own(self) -> dict[str, Tensor]:
        """The parameters, without those in whose place something stands."""
        every: Mapping[str, Any] = self._parameters
        return {name: every[name] for name in self._memory.places if name in every}

    def _values(self) -> dict[str, Tensor]:
        """The parameters, or what stands in their place (as torch.nn.utils.parametrize puts it there).

        That may be another one each time it is asked for.
        """
        own = self._own()
        return {name: own[name] if name in own else getattr(self, name) for name in self._memory.places}

    # ---- batches --------------------------------------------------------------------------------

    @property
    def turn(self) -> Turn:
        """Several threads may call; one at a time has its turn."""
        return self.dnc.turn

    def attach(self, data: Data) -> Dataset:
        """Reads data with the module's vocabulary; sample numbers mean its samples from then on."""
        return self.dnc.attach(data)

    @property
    def vocabularies(self) -> Mapping[str, Vocabulary]:
        """By dimension what the numbers of `predict` are called: `words[number]`.

        `words` is None where the data have numbers instead; classes that are numbers, and whose size is set,
        have no vocabulary.
        """
        return self.dnc.vocabularies or {}

    @in_turn
    def sizes(self, batch: Given = None) -> dict[str, list[int]]:
        """How many rows every sample has, by pulled field and by output: for torch.split."""
        return as_lists(self._counts(self._batch(batch, False)))

    @in_turn
    def encoder(self, samples: int, purpose: str = TRAINING) -> BatchEncoder:
        """What encodes batches ahead: `net(encode(batch))` is `net(batch)`, to the bit.

        It needs no device and can be pickled, so a data loader may call it in its workers, as
        `collate_fn`. Made for batches of up to so many samples, for which there is memory from then on;
        others are encoded when they come. Sample numbers mean the data attached now. purpose: "training";
        "values", for `net(batch)` under `torch.no_grad()`; or "prediction", for `net.predict(batch)`.
        """
        check_whole("samples", samples, 1)
        self._check_purpose(purpose)
        return self._launches.encoder(samples, purpose, self._outputs == (LOSS,))

    def batches(self, batches: Iterable[Samples | Tensor], purpose: str = TRAINING) -> Iterator[Encoded]:
        """Batches in order, encoded ahead: `net` makes the same bits of them as of what was given.

        Those of numbers of the samples that are attached when the first is asked for are encoded several at
        a time, and in other processes (`encoders` of them) once there were a few; batches of samples when it
        is their turn. Batches of more samples than the first one are encoded when they come. purpose: as
        for `encoder`.
        """
        waiting = iter(batches_of(batches))
        self._check_purpose(purpose)

        def encoded() -> Iterator[Encoded]:
            given = self.turn.outside(waiting)
            for first in given:
                encode = self.encoder(_length(first), purpose)
                yield from encode.stream(chain([first], given), self._launches)

        return self.turn.stream(encoded())

    def _check_purpose(self, purpose: str) -> None:
        if not isinstance(purpose, str) or purpose not in PURPOSES:
            raise fail(f"unknown purpose '{purpose}' of an encoder; purposes: {', '.join(PURPOSES)}")
        if purpose == TRAINING:
            self.dnc.check_trains()

    @uncompiled
    @in_turn
    def forward(self, batch: Given = None, pulled: Pulled = None) -> dict[str, Tensor]:
        """What is learned from, by name: "loss", the mean over the samples; and the pushed values.

        pulled: by "Struct.field" a tensor [vertices, width] of all samples, one after another, or a list with
        one a sample; a tensor alone where the program pulls one field. Vertices stand in the order of the
        data: that of the file for flat samples, children before parents for nested ones. A pushed value of
        the root is [samples, ...], one of many vertices [vertices, ...], in the same order.
        """
        if not self._outputs:
            raise fail(
                f"model {self.dnc.build.model} has neither a loss nor pushed values: call predict instead"
            )
        values = self._values()
        data = self._batch(batch, True)
        vectors = self._check(data, pulled)
        tensors = (*vectors.values(), *values.values())
        learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if learns:
            self.dnc.check_trains()
            for name in self._frozen:
                if values[name].requires_grad:
                    raise fail(
                        f"parameter '{name}' does not learn in the program, so it has no gradient",
                        f"leave it out: net.{name}.requires_grad_(False)",
                    )
        noise = self._launches.noise() if self.training else NONE
        batch_of = BatchOf(data, noise, self.training)
        call = Call(self._launches, batch_of, tuple(self._pulled), values, self._outputs, self.sparse)
        if learns:
            found = Batch.apply(call, *tensors)
        else:
            with torch.no_grad():
                found = call.forward(tensors, False)
        return dict(zip(self._outputs, found, strict=True))

    @uncompiled
    @in_turn
    @torch.no_grad()
    def predict(self, batch: Given = None, pulled: Pulled = None) -> dict[str, Tensor]:
        """The declared and the pushed outputs by name, without gradients; labels may be missing.

        Shaped as in `forward`; a class is its number (int64).
        """
        data = self._batch(batch, False)
        vectors = self._check(data, pulled)
        names = [result.name for result in self.dnc.plan.results if result.kind == "output"]
        if not names:
            raise fail(f"model {self.dnc.build.model} declares no output")
        launched = self._launches.run(BatchOf(data), PREDICT, vectors, self._values())
        return self._launches.values(launched, names)

    def _batch(self, batch: Given, labels_required: bool) -> tuple[Dataset, Ints] | Encoded:
        if isinstance(batch, Encoded):
            if batch.encoder.owner != self._launches.key:
                raise fail("the batch was encoded for another module")
            if labels_required and not batch.encoder.reads_labels and not are_numbers(batch.batch):
                raise fail(
                    f"the samples were encoded for '{PREDICTION}', without their labels: use an encoder for "
                    f"'{TRAINING}' or '{VALUES}'"
                )
            if labels_required and batch.encoder.attached is not None and are_numbers(batch.batch):
                batch.encoder.attached[0].check_labels()
            return batch
        given: Samples | None = batch.numpy(force=True) if isinstance(batch, Tensor) else batch
        dataset, samples = self.dnc.batch_of(given, labels_required)
        if not len(samples):
            raise fail("a batch holds no samples")
        return distinct(dataset, samples)

    def _counts(self, data: tuple[Dataset, Ints] | Encoded) -> Mapping[str, Ints]:
        if isinstance(data, Encoded):
            return data.counts
        dataset, samples = data
        return self._launches.sharing(dataset).counts(samples)

    def _check(self, data: tuple[Dataset, Ints] | Encoded, pulled: Pulled) -> dict[str, Tensor]:
        if not self._pulled and pulled is None:
            return {}
        known = self._counts(data)
        sizes = {name: known[name] for name in self._pulled}
        return check_pulled(pulled, sizes, self._pulled, self._memory.device)

    # ---- the state ------------------------------------------------------------------------------

    @property
    def draws(self) -> int:
        """Training batches so far that drew random numbers: with it, dropout goes on where it was."""
        return self._launches.draws

    @draws.setter
    def draws(self, draws: int) -> None:
        check_whole("draws", draws, 0)
        self._launches.draws = draws

    @in_turn
    def save(self, path: str | Path) -> None:
        """Writes a checkpoint that `dnc run` and `checkpoint=` read, with the vocabulary."""
        self._launches.enter()
        self._memory.bring_in(self._values())
        self.dnc.save(path)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Copies: a view of the pool would be saved with the whole pool."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not keep_vars:
            for name in self._parameters:
                own = destination.get(prefix + name)  # by columns, perhaps, or with gaps
                if own is not None:
                    destination[prefix + name] = own.clone(memory_format=torch.contiguous_format)

    @in_turn
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Module:
        """`.to()` and its like: the parameters stay where the kernel has them, as float32.

        What a subclass or its user has added, modules, parameters and buffers, is treated as in any module.
        """
        moved = fn(torch.empty(0, device=self._memory.device))
        if moved.device != self._memory.device or moved.dtype != torch.float32:
            note = "open the build where it is to run: dnc.torch.Module(build, device='cuda')"
            raise fail(
                f"model {self.dnc.build.model} computes in torch.float32 on {self._memory.device}, and "
                f"cannot be moved to {moved.dtype} on {moved.device}",
                *(() if moved.device == self._memory.device else (note,)),
            )
        if moved.device.type == "cpu" and moved.is_shared():
            raise fail(
                f"model {self.dnc.build.model} cannot be shared with other processes: its parameters lie in "
                "the memory of its kernel",
                "open the build in every process, and hand over state_dict()",
            )
        every = dict(self._parameters)
        own = {name: value for name, value in every.items() if name in self._memory.places}
        for name in own:
            del self._parameters[name]
        try:
            super()._apply(fn, recurse)
        finally:
            found = {**self._parameters, **own}
            self._parameters.clear()
            self._parameters.update({name: found[name] for name in every})
        return self

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        """As in any module; of sparse parameters what is kept."""
        super()._load_from_state_dict(*arguments, **options)
        for name, place in self._memory.places.items():
            value = self._parameters.get(name)
            if value is not None and place.parameter.is_sparse:
                kept = torch.from_numpy(pruned(place.parameter, value.detach().cpu().numpy()))
                with torch.no_grad():
                    value.copy_(kept)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as the path of the build, vocabulary and weights, and what was added to them."""
        model = self.dnc
        values = {name: value for name, value in self._values().items() if value is not None}
        parameters = {name: value for name, value in self._parameters.items() if name in values}
        memory = None if model.memory_words is None else model.memory_words * 4
        options = {"memory_bytes": memory, "encoders": model.encoders}
        own = (
            type(self),
            str(model.build.place),
            model.build.digest,
            self._device_name(),
            vocabularies_to_json(model.vocabularies or {}),
            {"seed": model.seed, "sparse": self.sparse, **options},
            {name: value.detach().cpu().clone() for name, value in values.items()},
            {name: value.requires_grad for name, value in parameters.items() if value is not None},
            self.draws,
        )
        added = {name: value for name, value in self._parameters.items() if name not in values}
        rest = {name: value for name, value in vars(self).items() if name not in OPENED}
        return _again, own, {**rest, "_parameters": added}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes what a subclass or its user has added: modules, parameters, hooks, attributes."""
        super().__setstate__({**state, "_parameters": {**self._parameters, **state["_parameters"]}})

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        """The same; parameters that other modules have too are shared in the copy likewise."""
        _, own, state = self.__reduce__()
        found = memo[id(self)] = _again(*own)
        for name in self._memory.places:
            value = self._parameters.get(name)
            if value is None:
                continue
            if id(value) in memo:
                found._parameters[name] = memo[id(value)]
            memo[id(value)] = found._parameters[name]
        found.__setstate__(copy.deepcopy(state, memo))
        return found

    def _device_name(self) -> str:
        if self._memory.device.type == "cuda":
            return str(self._memory.device)
        return "vm" if hasattr(self.dnc.backend, "machine") else "cpu"

    def extra_repr(self) -> str:
        """Model, device, shapes."""
        shapes = ", ".join(f"{name} {list(place.shape)}" for name, place in self._memory.places.items())
        return f"{self.dnc.build.model} on {self.dnc.device}: {shapes}"


def _again(
    kind: type[Module],
    build: str,
    digest: str,
    device: str,
    vocabularies: Any,
    options: dict[str, Any],
    values: dict[str, Tensor],
    trained: dict[str, bool],
    draws: int,
) -> Module:
    """A module from what `__reduce__` kept; a subclass is not asked, since its `__init__` is its own.

    trained: of every parameter whether it wants a gradient. What is not named there is none in the module:
    something stands in its place, as torch.nn.utils.parametrize puts it there.
    """
    known = vocabularies_from_json(vocabularies)
    module = kind.__new__(kind)
    Module.__init__(module, build, device=device, vocabularies=known, **options)
    if module.dnc.build.digest != digest:
        raise fail(f"{build}: holds another program than the one that was saved")
    module.load_state_dict(values, strict=False)  # without those that are None
    for name in values:
        if name in trained:
            module._parameters[name].requires_grad_(trained[name])
        else:
            del module._parameters[name]
    module.draws = draws
    return module


def _device_of(device: str | torch.device | None) -> str | None:
    """What `load` calls a device of PyTorch; others it knows, or not, by themselves."""
    if isinstance(device, str):
        try:
            device = torch.device(device)
        except RuntimeError:
            return device
    if not isinstance(device, torch.device):
        return device
    return str(device) if device.type == "cuda" else device.type


def _has_loss(model: Model) -> bool:
    return any(result.kind == "loss" for result in model.plan.results)


def _length(batch: object) -> int:
    """How many samples a batch may have; whoever reads it says what is wrong with it."""
    try:
        return max(len(batch), 1)  # type: ignore[arg-type]
    except TypeError:
        return 1
