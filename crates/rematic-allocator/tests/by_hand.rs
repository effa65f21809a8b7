//! Tiny cases with a known answer.

use rematic_allocator::{
    Allocator, AllocatorError, BlockState, Completion, Device, EventKind, PoolId, PoolOptions, Settings, Shortage,
};

const MIB: u64 = 1 << 20;

fn with(settings: &str, total: u64) -> Allocator {
    Allocator::new(settings.parse().expect("settings"), Device::with_memory(total))
}

#[test]
fn a_tail_of_a_mebibyte_is_not_split_off() {
    let mut allocator = with("", 1 << 30);
    let first = allocator.alloc(12 * MIB, 0).unwrap();
    allocator.free(first).unwrap();
    allocator.alloc(11 * MIB, 0).unwrap();
    assert_eq!(allocator.counters().allocated.current, 12 * MIB, "the tail counts as allocated");
    assert_eq!(allocator.counters().requested.current, 11 * MIB);
}

#[test]
fn the_smallest_block_that_fits_is_taken_and_of_equal_ones_the_first() {
    let mut allocator = with("", 1 << 30);
    let blocks: Vec<_> = [40, 30, 30].map(|size| allocator.alloc(size * MIB, 0).unwrap()).into();
    let places: Vec<u64> = blocks.iter().map(|&block| allocator.place(block).unwrap().0).collect();
    for block in blocks {
        allocator.free(block).unwrap();
    }
    let again = allocator.alloc(30 * MIB, 0).unwrap();
    assert_eq!(allocator.place(again), Ok((places[1], 30 * MIB)));
}

#[test]
fn streams_do_not_share_blocks() {
    let mut allocator = with("", 1 << 30);
    let block = allocator.alloc(30 * MIB, 0).unwrap();
    allocator.free(block).unwrap();
    allocator.alloc(30 * MIB, 1).unwrap();
    assert_eq!(allocator.counters().reserved.current, 60 * MIB);
}

#[test]
fn a_block_waits_for_the_streams_that_use_it() {
    let device = Device { completion: Completion::WhenSynchronized, ..Device::with_memory(1 << 30) };
    let mut allocator = Allocator::new(Settings::default(), device);
    let block = allocator.alloc(30 * MIB, 0).unwrap();
    allocator.record_stream(block, 7).unwrap();
    allocator.free(block).unwrap();
    allocator.alloc(30 * MIB, 0).unwrap();
    let counters = *allocator.counters();
    assert_eq!((counters.allocated.current, counters.active.current), (30 * MIB, 60 * MIB));
    assert_eq!(allocator.segments()[0].blocks[0].state, BlockState::PendingFree);
    allocator.synchronize(7);
    allocator.alloc(30 * MIB, 0).unwrap();
    assert_eq!(allocator.counters().reserved.current, 60 * MIB, "the block that waited was taken");
}

#[test]
fn a_block_whose_other_streams_are_done_at_once_is_free_with_the_next_request() {
    let mut allocator = with("", 1 << 30);
    let block = allocator.alloc(30 * MIB, 0).unwrap();
    allocator.record_stream(block, 7).unwrap();
    allocator.free(block).unwrap();
    assert_eq!(allocator.counters().active.current, 30 * MIB);
    allocator.alloc(30 * MIB, 0).unwrap();
    assert_eq!(allocator.counters().reserved.current, 30 * MIB);
}

#[test]
fn memory_is_released_before_it_runs_out() {
    let mut allocator = with("", 100 * MIB);
    let block = allocator.alloc(60 * MIB, 0).unwrap();
    allocator.free(block).unwrap();
    allocator.record_events();
    allocator.alloc(80 * MIB, 0).unwrap();
    let kinds: Vec<EventKind> = allocator.take_events().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::SegmentFree, EventKind::SegmentAlloc, EventKind::Alloc]);
    assert_eq!(allocator.counters().retries, 1);
}

#[test]
fn running_out_says_by_how_much_and_leaves_the_rest_in_order() {
    let mut allocator = with("", 100 * MIB);
    let kept = allocator.alloc(60 * MIB, 0).unwrap();
    let error = allocator.alloc(50 * MIB, 3).unwrap_err();
    let AllocatorError::OutOfMemory(numbers) = &error else { panic!("{error}") };
    assert_eq!((numbers.requested, numbers.stream, numbers.device_free), (50 * MIB, 3, 40 * MIB));
    assert_eq!(numbers.shortage, Shortage::Device);
    assert_eq!(
        error.to_string(),
        "Out of memory: 52428800 bytes were asked for, 52428800 were wanted from the driver, which has 41943040 of \
         104857600 bytes free. 62914560 bytes are allocated, 62914560 reserved. The device is too small; lower the \
         peak or take a larger one."
    );
    allocator.free(kept).unwrap();
    allocator.alloc(90 * MIB, 0).unwrap();
}

#[test]
fn a_fraction_of_the_device_is_a_limit() {
    let mut allocator = with("per_process_memory_fraction:0.5", 100 * MIB);
    let Err(AllocatorError::OutOfMemory(numbers)) = allocator.alloc(60 * MIB, 0) else { panic!("it fits") };
    assert_eq!(numbers.shortage, Shortage::Fraction(50 * MIB));
}

#[test]
fn expandable_segments_grow_by_what_is_missing() {
    let mut allocator = with("expandable_segments:True", 1 << 30);
    let first = allocator.alloc(30 * MIB, 0).unwrap();
    allocator.alloc(30 * MIB, 0).unwrap();
    assert_eq!(allocator.counters().reserved.current, 60 * MIB, "pieces of 20 MiB, without gaps between blocks");
    allocator.free(first).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.counters().reserved.current, 40 * MIB, "the piece that both blocks lie in stays");
    assert_eq!(allocator.segments().len(), 1);
}

#[test]
fn a_private_pool_keeps_its_memory_until_nobody_holds_it() {
    let mut allocator = with("", 1 << 30);
    let pool = allocator.create_pool(PoolOptions::default());
    allocator.begin_pool(pool).unwrap();
    let block = allocator.alloc(30 * MIB, 0).unwrap();
    allocator.end_pool(pool).unwrap();
    allocator.release_pool(pool).unwrap();
    allocator.free(block).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.counters().reserved.current, 30 * MIB);
    assert_eq!(allocator.segments()[0].pool, Some(pool));
    allocator.drop_pool(pool).unwrap();
    assert_eq!(allocator.counters().reserved.current, 0);
    assert_eq!(allocator.begin_pool(pool), Err(AllocatorError::UnknownPool(pool)));
    assert_eq!(allocator.end_pool(PoolId(9)), Err(AllocatorError::NotRouted(PoolId(9))));
}
