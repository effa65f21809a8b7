"""Random requests under random settings, recorded on the fake GPU: one process each, forked after torch is imported.

    run sequences.py DIR FIRST COUNT [LENGTH]

writes DIR/00000.txt and so on; the number is the seed.
"""
import os
import random
import sys
import traceback

import recording
import torch

MIB = 1 << 20


def settings(rng):
    """A value of PYTORCH_CUDA_ALLOC_CONF, and the memory of the device."""
    chosen = {}
    large = 20
    if rng.random() < 0.25:
        large = chosen["large_segment_size_mb"] = rng.choice([11, 12, 16, 24, 32, 64])
    if rng.random() < 0.35:
        chosen["max_split_size_mb"] = rng.choice([large, large + 1, 40 + large, 100, 200, 500])
    if rng.random() < 0.25:
        chosen["max_non_split_rounding_mb"] = rng.choice([large, large + 7, 100, 1000])
    if rng.random() < 0.3:
        lists = ["[1:8,4:4,16:2,>:1]", "[256:1,512:2,1024:4,>:8]", "[2:2,64:16]", "[>:4]", "[8:0,>:2]"]
        chosen["roundup_power2_divisions"] = rng.choice(["1", "2", "4", "8", "16", *lists])
    fraction = rng.random() < 0.4
    if fraction:
        chosen["per_process_memory_fraction"] = rng.choice([0.9, 0.5, 0.333, 0.75, 1.0])
    if rng.random() < (0.6 if fraction else 0.1):
        chosen["garbage_collection_threshold"] = rng.choice([0.2, 0.5, 0.8, 0.05])
    if rng.random() < 0.45:
        chosen["expandable_segments"] = rng.choice(["True", "True", "True", "False"])
        if rng.random() < 0.4:
            chosen["expandable_segments_reserve"] = rng.choice(["0.5", "0.1", "0.25G", "1G", "2.0", "bad"])
    if rng.random() < 0.1:
        chosen["release_lock_on_cudamalloc"] = rng.choice(["True", "False"])
    if rng.random() < 0.15:
        chosen["throw_on_cudamalloc_oom"] = rng.choice(["True", "False"])
    items = [f"{key}:{value}" for key, value in chosen.items()]
    rng.shuffle(items)
    total = rng.choice([64, 100, 200, 333, 512, 1000, 2048, 4096, 80000]) * MIB + rng.choice([0, 0, 12345])
    return ",".join(items), total


def sizes(rng):
    """What a sequence asks for: mostly a few sizes again and again, as training does."""
    def any_size():
        kind = rng.random()
        if kind < 0.4:
            return rng.randrange(1, MIB + 1)
        if kind < 0.7:
            return rng.randrange(MIB, 12 * MIB)
        if kind < 0.95:
            return rng.randrange(10 * MIB, 150 * MIB)
        return rng.choice([512, 513, MIB, MIB + 1, 10 * MIB, 10 * MIB - 1, 20 * MIB, 2 * MIB, 1])

    few = [any_size() for _ in range(rng.randrange(3, 40))]
    often = rng.choice([0.5, 0.9, 1.0])
    return lambda: rng.choice(few) if rng.random() < often else any_size()


def requests(rng, total, length, expandable):
    """Requests for memory until about the device's is in use, and frees."""
    size = sizes(rng)
    streams = rng.choice([1, 1, 2, 4])
    target = total * rng.choice([0.3, 0.8, 1.0, 1.3])
    most_pools = rng.choice([1, 3, 8])
    with_pools, with_uses = rng.random() < 0.4, rng.random() < 0.4
    empties = rng.choice([0, 0.003, 0.01])

    def one_by_one(driver):
        alive, open_pools, pools, asked = [], [], 0, 0
        # Torch 2.15 crashes when a pool of expandable segments goes before the blocks that lie in it.
        homes, spare = {}, set()
        for _ in range(length):
            dice = rng.random()
            if with_pools and dice < 0.02 and pools < most_pools:
                flags = rng.choice([0, 0, 1, 2])
                spare |= {pools} if flags & 1 else set()
                yield ("p", flags)
                pools += 1
            elif with_pools and dice < 0.05 and pools:
                pool = rng.randrange(pools)
                if pool in open_pools:
                    open_pools.remove(pool)
                    yield ("n", pool)
                elif driver.pools[pool] is not None and rng.random() < 0.8:
                    open_pools.append(pool)
                    yield ("b", pool)
                elif driver.pools[pool] is not None and rng.random() < 0.5:
                    is_used = pool in spare or any(homes[block] == pool for block in alive)
                    yield ("e",) if expandable and is_used else ("x", pool)
                else:
                    yield ("e",)
            elif dice > 1 - empties:
                yield ("e",)
            elif with_uses and dice < 0.12 and alive:
                yield ("r", rng.choice(alive), rng.randrange(5))
            elif alive and rng.random() < driver.allocated / target * 0.55 + 0.02:
                block = alive.pop(rng.randrange(len(alive)) if rng.random() < 0.5 else -1)
                yield ("f", block)
            else:
                yield ("a", size(), rng.randrange(streams))
                homes[asked] = open_pools[-1] if open_pools else None
                if driver.blocks[asked] is not None:
                    alive.append(asked)
                asked += 1

    return one_by_one


def main():
    place, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    length = int(sys.argv[4]) if len(sys.argv) > 4 else 1000
    os.makedirs(place, exist_ok=True)
    failed = 0
    for seed in range(first, first + count):
        child = os.fork()
        if child == 0:
            code = 0
            try:
                rng = random.Random(seed)
                conf, total = settings(rng)
                expandable = "expandable_segments:True" in conf
                text, _ = recording.record(conf, total, requests(rng, total, length, expandable))
                with open(f"{place}/{seed:05}.txt", "w") as out:
                    out.write(text)
            except BaseException:
                print(f"seed {seed}:", file=sys.stderr)
                traceback.print_exc()
                code = 1
            os._exit(code)
        failed += os.waitpid(child, 0)[1] != 0
    print(f"{count - failed} of {count} sequences recorded in {place}")
    return failed > 0


if __name__ == "__main__":
    assert not torch.cuda.is_initialized()
    sys.exit(main())
