"""Predictions against what torch's allocator said.

    python compared.py DIR RESERVED [NAME...]      RESERVED is the example `reserved` of the crate `rematic`
"""
import json
import os
import subprocess
import sys

CARDS = {"80": "a100-80", "90": "h100"}
# What is promised.
ALLOCATED, RESERVED = 0.001, 0.01


def lines(text):
    return {os.path.basename(line["plan"]): line for line in map(json.loads, text.splitlines())}


def pairs(place, example, names):
    """Name, card, plan, prediction and truth of every step that ran."""
    for name in names:
        for capability, card in CARDS.items():
            path = f"{place}/{name}.{capability}"
            if not os.path.exists(path):
                continue
            with open(path) as file:
                real = lines(file.read())
            plans = [plan if plan == "-" else f"{place}/{plan}" for plan in real]
            said = subprocess.run([example, f"{place}/{name}.rmt", card, *plans], capture_output=True, text=True)
            if said.returncode:
                print(f"{name} {card}: {said.stderr.strip()}")
                continue
            said = lines(said.stdout)
            for plan, truth in real.items():
                yield name, card, plan.removeprefix(f"{name}-").removesuffix(".json"), said[plan], truth


def main():
    place, example, *names = sys.argv[1:]
    names = names or sorted({file.removesuffix(".rmt") for file in os.listdir(place) if file.endswith(".rmt")})
    counts = dict.fromkeys(("steps", "allocated within 0.1 %", "reserved within 1 %", "both equal to the byte"), 0)
    print("| step | device | plan | allocated | real | | reserved | real | |\n|---|---|---|---|---|---|---|---|---|")
    for name, card, plan, said, truth in pairs(place, example, names):
        if "allocated" not in truth or "allocated" not in said:
            print(f"| {name} | {card} | {plan} | {said.get('error', '')} | {truth.get('failed', truth.get('error'))} |")
            continue
        shares = [said[key] / truth[key] - 1 for key in ("allocated", "reserved")]
        counts["steps"] += 1
        counts["allocated within 0.1 %"] += abs(shares[0]) <= ALLOCATED
        counts["reserved within 1 %"] += abs(shares[1]) <= RESERVED
        counts["both equal to the byte"] += not any(shares)
        mark = "" if abs(shares[0]) <= ALLOCATED and abs(shares[1]) <= RESERVED else " ✗"
        cells = [f"{said[key]:,} | {truth[key]:,} | {share:+.3%}" for key, share in zip(("allocated", "reserved"), shares)]
        print(f"| {name} | {card} | {plan} | {' | '.join(cells)}{mark} |")
    print(", ".join(f"{label}: {count}" for label, count in counts.items()))


if __name__ == "__main__":
    main()
