"""How torch reads settings of its allocator: right ones, wrong ones, and random pieces of both.

    run settings.py OUT COUNT

Each line is a text, a tab, and what came of it: `error`, or max_split_size, garbage_collection_threshold,
expandable_segments, and the divisions of every power of two.
"""
import os
import random
import sys

import torch

TEXTS = """
max_split_size_mb:128
max_split_size_mb:19
max_split_size_mb:100MB
max_split_size_mb:-1
max_split_size_mb:abc
max_split_size_mb
max_split_size_mb:
max_split_size_mb=128
max_split_size_mb,128
 max_split_size_mb : 128 , expandable_segments : True
large_segment_size_mb:10
large_segment_size_mb:32,max_split_size_mb:31
max_split_size_mb:31,large_segment_size_mb:32
max_split_size_mb:31,large_segment_size_mb:30
max_non_split_rounding_mb:20
max_non_split_rounding_mb:19
garbage_collection_threshold:0.8
garbage_collection_threshold:0
garbage_collection_threshold:1
garbage_collection_threshold:.5x
garbage_collection_threshold:5e-1
roundup_power2_divisions:4
roundup_power2_divisions:0
roundup_power2_divisions:3
roundup_power2_divisions:[256:1,512:2,1024:4,>:8]
roundup_power2_divisions:[>:4]
roundup_power2_divisions:[1:0,>:4]
roundup_power2_divisions:[3:4]
roundup_power2_divisions:[4:3]
roundup_power2_divisions:[4:2
roundup_power2_divisions:[]
roundup_power2_divisions:[65536:4,>:2]
roundup_power2_divisions:[64:8,2:4]
expandable_segments:true
expandable_segments:True
expandable_segments:False,expandable_segments:True
expandable_segments_reserve:0.5
expandable_segments_reserve:x
expandable_segments_reserve_by_class:[a:0.5,b:4G]
expandable_segments_reserve_by_class:[a:0.5
expandable_segments_handle_type:posix_fd
per_process_memory_fraction:0.5
per_process_memory_fraction:1.5
throw_on_cudamalloc_oom:True
throw_on_cudamalloc_oom:1
release_lock_on_cudamalloc:True
release_lock_on_hipmalloc:True
graph_capture_record_stream_reuse:True
pinned_use_background_threads:True
pinned_use_background_threads:yes
pinned_max_round_threshold_mb:64
pinned_max_cached_size_mb:64
pinned_use_cuda_host_register:True,pinned_num_register_threads:8
pinned_num_register_threads:3
pinned_num_register_threads:256
pinned_reserve_segment_size_mb:0
pinned_reserve_segment_size_mb:4
pinned_free_catch_all:True
backend:native
backend:other
unknown:1
,
:
expandable_segments:True,
,expandable_segments:True
""".split("\n")


def read(text):
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except (RuntimeError, ValueError, IndexError):
        return "error"
    torch.cuda.init()
    said = torch.cuda.memory._snapshot()["allocator_settings"]
    divisions = ",".join(str(value) for value in said["roundup_power2_divisions"].values())
    threshold = said["garbage_collection_threshold"]
    return f"{said['max_split_size']} {threshold!r} {said['expandable_segments']} {divisions}"


def damaged(right, rng):
    """Some of the right texts, mostly with a piece missing, doubled or changed."""
    text = ",".join(rng.sample(right, rng.choice([1, 2, 2, 3])))
    for _ in range(rng.choice([0, 0, 1, 2])):
        at = rng.randrange(len(text) + 1)
        text = rng.choice([text[:at] + text[at + 1:], text[:at] + rng.choice(":,[]> 19.") + text[at:], text[:at]])
    return text


def said(text):
    """What comes of a text in a process of its own."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, read(text).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.wait()
    return answer


def main():
    out, count = sys.argv[1], int(sys.argv[2])
    rng = random.Random(0)
    answers = {text: said(text) for text in TEXTS}
    right = [text for text, answer in answers.items() if answer != "error"]
    for _ in range(count):
        text = damaged(right, rng)
        answers[text] = said(text)
    with open(out, "w") as file:
        file.writelines(f"{text}\t{answer}\n" for text, answer in answers.items())


if __name__ == "__main__":
    main()
