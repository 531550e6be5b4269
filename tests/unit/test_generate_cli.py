"""dnc generate: what `Model.generate` makes, for every line of a file."""

import json
import subprocess
import sys

import pytest

import dnc
from dnc.compiler import compile_model
from tests.support.models import SUPPORT

GENERATE = "generate build --device vm --checkpoint run/last.safetensors"


def pair(number):
    source = [{"form": f"s{(number + at) % 7}"} for at in range(1 + number % 3)]
    target = [{"form": f"t{(number + at) % 4}"} for at in range(number % 4)]
    return {"source": source, "target": [*target, {"form": "end"}]}


@pytest.fixture
def trained(command, workplace):
    """A decoder whose words have names, and sources without targets."""
    text = (SUPPORT / "decoder.dn").read_text()
    (workplace / "named.dn").write_text(text)
    compile_model(workplace / "named.dn", workplace / "build2", ("cpu",))
    pairs = [pair(number) for number in range(16)]
    (workplace / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in pairs))
    done = command("run build2 --data pairs.jsonl --device vm --batch 4 --run-dir run")
    assert done.code == 0, done.error
    sources = "".join(json.dumps({"source": each["source"]}) + "\n" for each in pairs[:5])
    (workplace / "sources.jsonl").write_text(sources)
    return GENERATE.replace("build", "build2")


def test_words_of_every_line(trained, command, workplace):
    rest = "--end end --output words --list target --most 6"
    done = command(f"{trained} --data sources.jsonl {rest}")
    assert done.code == 0, done.error
    model = dnc.load("build2", "vm", checkpoint="run/last.safetensors")
    samples = [json.loads(line) for line in (workplace / "sources.jsonl").read_text().splitlines()]
    found = model.generate(samples, "end", "words", most=6, field="target")
    words = model.vocabularies["targets"].words
    names = [*words, *range(len(words), 7)]  # of some classes there is no word
    assert [each["words"] for each in done.events] == [[names[at] for at in words] for words in found]
    by_number = rest.replace("--end end", f"--end {words.index('end')}")
    assert command(f"{trained} --data sources.jsonl {by_number}").out == done.out
    into = command(f"{trained} --data sources.jsonl {rest} --chunk 2 -o out.jsonl")
    assert into.code == 0 and (workplace / "out.jsonl").read_text() == done.out
    called = [{"id": at, **each} for at, each in enumerate(samples)]
    (workplace / "called.jsonl").write_text("".join(json.dumps(each) + "\n" for each in called))
    by_id = command(f"{trained} --data called.jsonl {rest}").events
    assert by_id == [{"id": at, **each} for at, each in enumerate(done.events)]
    piped = subprocess.run(
        [sys.executable, "-m", "dnc", *trained.split(), "--data", "-", *rest.split()],
        input=(workplace / "sources.jsonl").read_bytes(),
        capture_output=True,
    )
    assert piped.stdout.decode() == done.out


@pytest.mark.parametrize(
    "rest, message",
    [
        ("--data sources.jsonl --end stop --output words --list target", "the word 'stop' that ends a list"),
        ("--data sources.jsonl --end end --output logits --list target", "'logits' is no output of words"),
        ("--data pairs.jsonl --end end --output words --list target", "which is to be made"),
        (
            "--data none.jsonl --end end --output words --list target",
            "none.jsonl: error: there is no such file",
        ),
        ("--data sources.jsonl --end end --list words", "words"),
        ("--data sources.jsonl --end end --output words --list target -o sources.jsonl", "sources.jsonl"),
    ],
)
def test_mistakes(trained, command, rest, message):
    done = command(f"{trained} {rest}")
    assert done.code == 2 and message in done.error and "Traceback" not in done.error


def test_mistakes_in_data_are_at_their_lines(trained, command, workplace):
    rest = "--end end --output words --list target --data wrong.jsonl"
    good = '{"source":[{"form":"s1"}]}'
    for text, message in (
        (f'{good}\n\n{{"source":[{{"form":3}}]}}\n', "wrong.jsonl:3: error: source[0].form holds a string"),
        (f'{good}\n\n{{"sauce":[]}}\n', "wrong.jsonl:3: error: Pair has no field 'sauce'"),
        (
            f'\n{good}\n{{"source":[{{"form":"s1"}}],"target":[{{}}]}}\n',
            "wrong.jsonl:3: error: found 'target', which is to be made; expected an object without that list",
        ),
        (
            '{"Pair":{"source":[[0]]},"Source":{"form":["s1"]},"root":0}\n',
            "wrong.jsonl:1: error: is in flat form; what a list is made for is in nested form",
        ),
        ("\n", "wrong.jsonl: error: the file is empty, expected one sample a line"),
    ):
        (workplace / "wrong.jsonl").write_text(text)
        done = command(f"{trained} {rest}")
        assert done.code == 2 and done.error.startswith(message)


def test_a_field_that_is_called_id_is_no_id(command, workplace):
    text = (SUPPORT / "decoder.dn").read_text().replace("Pair(source:", "Pair(id: token<users>, source:")
    (workplace / "own.dn").write_text(text.replace("Decoder(", "Decoder(users, "))
    compile_model("own.dn", "own", ("cpu",))
    pairs = "".join(json.dumps({**pair(number), "id": "anna"}) + "\n" for number in range(4))
    (workplace / "own.jsonl").write_text(pairs)
    assert command("run own --data own.jsonl --device vm --run-dir r").code == 0
    (workplace / "source.jsonl").write_text('{"id": "anna", "source": [{"form": "s1"}]}\n')
    rest = "--end end --output words --list target --most 3 --device vm --run-dir r"
    done = command(f"generate own --data source.jsonl {rest}")
    assert done.code == 0 and list(done.events[0]) == ["words"], done.error


def test_what_has_to_be_named_by_which_option(trained, command, workplace):
    done = command(f"{trained} --data sources.jsonl --end end --list target")
    assert "outputs that do: words, following (--output NAME)" in done.error
    text = (
        (SUPPORT / "decoder.dn").read_text().replace("target: [Target])", "target: [Target], more: [Target])")
    )
    (workplace / "two.dn").write_text(text)
    compile_model("two.dn", "two", ("cpu",))
    pairs = "".join(json.dumps({**pair(number), "more": []}) + "\n" for number in range(4))
    (workplace / "two.jsonl").write_text(pairs)
    assert command("run two --data two.jsonl --device vm --run-dir r").code == 0
    done = command("generate two --data sources.jsonl --end end --output words --device vm --run-dir r")
    found = "Pair, the root, has lists that can be made, target, more: name one (--list target, in Python"
    assert done.code == 2 and found in done.error


def test_words_that_samples_have_to_give(command, workplace):
    """An output that chooses from tokens has their words; a list of such elements cannot be made."""
    text = (SUPPORT / "decoder.dn").read_text().replace("class<targets>", "token<targets>")
    (workplace / "named.dn").write_text(text)
    compile_model("named.dn", "build2", ("cpu",))
    samples = [pair(number) for number in range(16)]
    model = dnc.load("build2", "vm")
    model.attach(samples)
    words = model.vocabularies["targets"].words
    assert {"end", "t0"} <= set(words)
    found = model.predict(samples[:1])
    (made,) = dnc.as_json(model, {"words": found["words"]})
    assert made == {"words": [words[at] if at < len(words) else at for at in found["words"][0].tolist()]}
    with pytest.raises(dnc.DiagnosticError, match="data give every Target its form"):
        model.generate([{"source": [{"form": "s1"}]}], "end", "words", field="target")
