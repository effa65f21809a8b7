"""What torch's own caching allocator does with a list of requests, written down for comparison.

A request is a tuple, and a line of a recording; blocks are named by the number of their request.

    a SIZE STREAM        a tensor of so many bytes on a stream
    f BLOCK              its last reference goes
    r BLOCK STREAM       record_stream
    e                    empty_cache
    p FLAGS              a MemPool, numbered from 0; 1 for use_on_oom, 2 for no_split
    b POOL, n POOL       use_mem_pool begins, ends
    x POOL               the pool's object goes

After a bar come the events: `a`, `q` (free_requested), `c` (free_completed), `S`, `F`, `M`, `U` (segment_alloc,
_free, _map, _unmap) and `O` (oom), with the address in units of 512 bytes from the first one on; for segments also
size, stream and pool, for `O` the free memory and the rounded size. A line that ends with `f BLOCK` has the two usual
events. `+BYTES` is what a block has beyond the request rounded up to 512: a tail that was not split off, or coarser
rounding. Allocated and reserved bytes after every line follow from that; they are compared with `memory_stats` while
recording.
"""
import gc
import os

import torch

LETTERS = {"alloc": "a", "free_requested": "q", "free_completed": "c", "segment_alloc": "S", "segment_free": "F",
           "segment_map": "M", "segment_unmap": "U", "oom": "O"}
GROWS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def history():
    """All that the allocator did since it was asked to record."""
    return [entry for entry in torch.cuda.memory._snapshot()["device_traces"][0] if entry["action"] in LETTERS]


class Driver:
    """Sends requests to torch's allocator, in a process that has not used the device yet."""

    def __init__(self, settings, total):
        os.environ["FAKEGPU_BYTES"] = str(total)
        torch._C._accelerator_setAllocatorSettings(settings)
        torch.cuda.init()
        torch.cuda.memory._record_memory_history(max_entries=10**7, context=None)
        self.head = f"settings {settings}\ndevice {total}\n"
        self.streams = [torch.cuda.default_stream()] + [torch.cuda.Stream() for _ in range(4)]
        self.numbers = {stream.cuda_stream: number for number, stream in enumerate(self.streams)}
        # The allocator orders blocks by stream first, and streams by their handle.
        assert sorted(self.numbers) == list(self.numbers)
        self.blocks, self.sizes, self.pools, self.pool_numbers = [], [], [], {}
        self.allocated, self.answers = 0, []

    def send(self, request):
        kind, *values = request
        before = self.allocated
        torch._C._cuda_setMemoryMetadata(str(len(self.answers)))
        getattr(self, f"on_{kind}")(*values)
        stats = torch._C._cuda_memoryStats(0)
        self.allocated = stats["allocated_bytes"]["all"]["current"]
        if kind == "a":
            self.sizes.append(self.allocated - before)
        else:
            assert before - self.allocated == (self.sizes[values[0]] if kind == "f" else 0), request
        self.answers.append((request, stats["reserved_bytes"]["all"]["current"]))

    def on_a(self, size, stream):
        torch._C._cuda_setStream(
            stream_id=self.streams[stream].stream_id, device_index=0, device_type=self.streams[stream].device_type)
        try:
            self.blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            self.blocks.append(None)

    def on_f(self, block):
        self.blocks[block] = None

    def on_r(self, block, stream):
        self.blocks[block].record_stream(self.streams[stream])

    def on_e(self):
        torch.cuda.empty_cache()

    def on_p(self, flags):
        pool = torch.cuda.MemPool(use_on_oom=bool(flags & 1), no_split=bool(flags & 2))
        self.pool_numbers[pool.id] = len(self.pools)
        self.pools.append(pool)

    def on_b(self, pool):
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, self.pools[pool].id)

    def on_n(self, pool):
        torch._C._cuda_endAllocateToPool(0, self.pools[pool].id)
        torch._C._cuda_releasePool(0, self.pools[pool].id)

    def on_x(self, pool):
        self.pools[pool] = None

    def event(self, entry, base):
        letter = LETTERS[entry["action"]]
        if letter == "O":
            return f"O{entry['device_free']}:{entry['size']}"
        place = (entry["addr"] - base) // 512
        if letter in "aqc":
            return f"{letter}{place}"
        pool = self.pool_numbers.get(entry["pool_id"], "")
        return f"{letter}{place}:{entry['size']}:{self.numbers[entry['stream']]}:{pool}"

    def text(self):
        """The recording: each request with its events."""
        events = history()
        base = next((e["addr"] for e in events if e["action"] in GROWS), 0)
        by_request = [[] for _ in self.answers]
        for entry in events:
            by_request[int(entry["user_metadata"])].append(entry)
        lines, reserved, places = [], 0, []
        for (request, now), entries in zip(self.answers, by_request):
            reserved += sum(GROWS.get(e["action"], 0) * e["size"] for e in entries)
            assert reserved == now, (request, reserved, now)
            mine = [self.event(entry, base) for entry in entries]
            if request[0] == "a":
                size = self.sizes[len(places)]
                extra = size - (request[1] + 511) // 512 * 512
                places.append(mine[-1][1:] if size else None)
                mine += [f"+{extra}"] if size and extra else []
            if request[0] == "f" and mine == ["q" + places[request[1]], "c" + places[request[1]]]:
                mine = []
            lines.append(" ".join(map(str, request)) + ("|" + " ".join(mine) if mine else ""))
        return self.head + "\n".join(lines) + "\n"


def record(settings, total, requests):
    """The recording of requests, and the history. A request may depend on what came of those before."""
    gc.disable()
    driver = Driver(settings, total)
    for request in requests(driver):
        driver.send(request)
    return driver.text(), history()
