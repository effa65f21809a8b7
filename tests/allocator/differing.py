"""Where what we ask of the allocator in a step and what torch asks part.

    python differing.py OURS REAL       files of the example `reserved` and of real.py
"""
import difflib
import itertools
import sys


def requests(path):
    """Signed sizes in order, rounded as the allocator does, and who asked. What is given back between two takes is sorted: in which
    order makes no difference to what lies free then."""
    held, asked = {}, []
    with open(path) as file:
        for line in file:
            name, address, bytes_ = line.rstrip("\n").split("\t")
            if bytes_ != "-":
                held[address] = max(512, -(-int(bytes_) // 512) * 512)
                asked.append((held[address], name))
            else:
                # What was there before the step began has no size here.
                asked.append((-held.pop(address, 0), name))
    runs = [sorted(run) if gives else list(run) for gives, run in itertools.groupby(asked, lambda each: each[0] <= 0)]
    ordered = [each for run in runs for each in run]
    return [size for size, _ in ordered], [name for _, name in ordered]


def main():
    (ours, by_us), (real, by_torch) = map(requests, sys.argv[1:3])
    print(f"{len(ours)} requests of ours, {len(real)} of torch's")
    matcher = difflib.SequenceMatcher(None, ours, real, autojunk=False)
    seen = {}
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            continue
        name = by_us[min(a, len(ours) - 1)].split(" ")[0]
        text = f"{name}: ours {ours[a:b]}, torch {real[c:d]}   after {ours[max(0, a - 3):a]}"
        seen.setdefault((name, b - a, d - c), []).append((by_us[min(a, len(ours) - 1)], text, by_torch[c:d][:2]))
    for cases in sorted(seen.values(), key=len, reverse=True):
        print(f"{len(cases)} times {cases[0][1]}\n     {cases[0][0]}, {cases[0][2]}")


if __name__ == "__main__":
    main()
