"""Steps around the capacity of a device: whether we say that they fit, and whether they run on the fake GPU.

    python verdicts.py DIR RESERVED RUN      RESERVED is the example `reserved` of the crate `rematic`, RUN starts the fake GPU

Batch and length are varied for two models on two cards. A card has so much memory that about half of the steps fit.
"""
import itertools
import json
import os
import subprocess
import sys

import torch

import models

CARDS = {"80": "a100-80", "90": "h100"}
EDGE = 0.01
MIB = 1 << 20


def steps():
    """Name, model and the bytes of a card on which some of them fit."""
    for batch, length in itertools.product((2, 3, 4, 6, 8), (256, 384, 512)):
        yield f"gpt2-{batch}x{length}", models.decoder("gpt2.json", batch, length, optimizer="adam", native=True), 4500 * MIB
    llama = {"model_type": "llama", **models.GROUPED}
    for batch, length in itertools.product((1, 2, 3, 4, 5), (512, 768, 1024)):
        name = f"llama-{batch}x{length}"
        yield name, models.decoder(llama, batch, length, torch.bfloat16, native=True), 2200 * MIB


def ran(answer):
    """Whether there was memory enough. Anything else that goes wrong is no answer."""
    if "failed" in answer:
        raise SystemExit(answer["failed"])
    return "allocated" in answer


def predict(place, example):
    import rematic

    os.makedirs(place, exist_ok=True)
    said = {}
    for name, model, memory in steps():
        rematic.Trace.model(**model.native).save(f"{place}/{name}.rmt")
        for card in CARDS.values():
            for bytes_ in (memory, 1 << 50):
                command = [example, f"{place}/{name}.rmt", card, "--bytes", str(bytes_), "-"]
                said[name, card, bytes_ == memory] = json.loads(subprocess.check_output(command, text=True))
    return said


def real():
    """On the fake GPU: every step on a card of its size."""
    import real as training
    import transformers  # noqa: F401  (once, before the processes part)

    answers = {}
    for name, model, memory in steps():
        os.environ["FAKEGPU_BYTES"] = str(memory)
        answers[name] = training.in_child(lambda model=model: training.train(model, "-"))
    print(json.dumps(answers))


def main():
    place, example, run = sys.argv[1:]
    said = predict(place, example)
    agree, edge, wrong = 0, 0, []
    for capability, card in CARDS.items():
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "verdicts.py")
        environment = {**os.environ, "FAKEGPU_SM": capability}
        answers = subprocess.check_output([run, path, "real"], env=environment, text=True)
        answers = json.loads(answers.splitlines()[-1])
        for name, _, memory in steps():
            ours, theirs = ran(said[name, card, True]), ran(answers[name])
            distance = abs(said[name, card, False]["reserved"] / memory - 1)
            if ours == theirs:
                agree += 1
            elif distance < EDGE:
                edge += 1
            else:
                wrong.append(f"{name} on {card}: we say {ours}, it {theirs}; {distance:.2%} from the edge")
            print(f"{name} {card}: {'fits' if ours else 'does not'} / {'ran' if theirs else 'ran out'}")
    print(f"{agree} of {agree + edge + len(wrong)} agree, {edge} differ within {EDGE:.0%} of the edge, {len(wrong)} beyond")
    print("\n".join(wrong))


if __name__ == "__main__":
    torch.set_num_threads(1)
    real() if sys.argv[1:] == ["real"] else main()
