//! Whatever is asked for in whatever order: no panic, no overflow, and books that balance.

use proptest::prelude::*;
use rematic_allocator::{
    Allocation, Allocator, AllocatorError, BlockState, Completion, Device, PoolId, PoolOptions, Settings,
};

#[derive(Clone, Debug)]
enum Call {
    Alloc { size: u64, stream: u64 },
    Free(usize),
    RecordStream { block: usize, stream: u64 },
    Synchronize(u64),
    SynchronizeAll,
    EmptyCache,
    CreatePool(bool, bool),
    Begin(u32),
    End(u32),
    Release(u32),
    Drop(u32),
    Empty(u32),
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..(2u64 << 20),
        8 => 0..(64u64 << 20),
        2 => Just(512),
        1 => any::<u64>(),
        1 => prop_oneof![Just(u64::MAX), Just(1 << 60), Just((1 << 60) - 1), Just(0), Just(1 << 40)],
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let stream = prop_oneof![4 => 0..3u64, 1 => any::<u64>()];
    prop_oneof![
        20 => (size(), stream.clone()).prop_map(|(size, stream)| Call::Alloc { size, stream }),
        14 => any::<usize>().prop_map(Call::Free),
        3 => (any::<usize>(), stream.clone()).prop_map(|(block, stream)| Call::RecordStream { block, stream }),
        1 => stream.prop_map(Call::Synchronize),
        1 => Just(Call::SynchronizeAll),
        1 => Just(Call::EmptyCache),
        1 => any::<(bool, bool)>().prop_map(|(spare, whole)| Call::CreatePool(spare, whole)),
        1 => (0..5u32).prop_map(Call::Begin),
        1 => (0..5u32).prop_map(Call::End),
        1 => (0..5u32).prop_map(Call::Release),
        1 => (0..5u32).prop_map(Call::Drop),
        1 => (0..5u32).prop_map(Call::Empty),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    let words = proptest::sample::subsequence(
        vec![
            "max_split_size_mb:32",
            "large_segment_size_mb:11",
            "large_segment_size_mb:17592186044415",
            "garbage_collection_threshold:0.3",
            "per_process_memory_fraction:0.5",
            "per_process_memory_fraction:0",
            "expandable_segments:True",
            "expandable_segments:True",
            "expandable_segments_reserve:0.2",
            "expandable_segments_reserve:1e300G",
            "roundup_power2_divisions:[1:2,8:16,>:4611686018427387904]",
            "throw_on_cudamalloc_oom:True",
        ],
        0..6,
    );
    words.prop_filter_map("settings that do not go together", |words| words.join(",").parse().ok())
}

fn device() -> impl Strategy<Value = Device> {
    let total = prop_oneof![8 => 0..(1u64 << 30), 1 => Just(0), 1 => Just(u64::MAX), 1 => any::<u64>()];
    (total, prop_oneof![4 => Just(0), 1 => any::<u64>()], any::<bool>()).prop_map(|(total, taken, at_once)| Device {
        total,
        taken,
        completion: if at_once { Completion::AtOnce } else { Completion::WhenSynchronized },
    })
}

/// A call, whose error is part of the answer.
fn make(allocator: &mut Allocator, call: &Call, blocks: &mut Vec<Allocation>) -> Result<(), AllocatorError> {
    let pick = |at: usize| if blocks.is_empty() { None } else { Some(blocks[at % blocks.len()]) };
    match *call {
        Call::Alloc { size, stream } => blocks.push(allocator.alloc(size, stream)?),
        Call::Free(at) => pick(at).map_or(Ok(()), |block| allocator.free(block))?,
        Call::RecordStream { block, stream } => {
            pick(block).map_or(Ok(()), |block| allocator.record_stream(block, stream))?;
        }
        Call::Synchronize(stream) => allocator.synchronize(stream),
        Call::SynchronizeAll => allocator.synchronize_all(),
        Call::EmptyCache => allocator.empty_cache()?,
        Call::CreatePool(use_on_oom, no_split) => {
            allocator.create_pool(PoolOptions { use_on_oom, no_split });
        }
        Call::Begin(pool) => allocator.begin_pool(PoolId(pool))?,
        Call::End(pool) => allocator.end_pool(PoolId(pool))?,
        Call::Release(pool) => allocator.release_pool(PoolId(pool))?,
        Call::Drop(pool) => allocator.drop_pool(PoolId(pool))?,
        Call::Empty(pool) => allocator.empty_pool(PoolId(pool))?,
    }
    Ok(())
}

/// The segments add up to the counters, and blocks fill them without gaps.
fn balance(allocator: &Allocator, device: &Device) {
    let counters = allocator.counters();
    let (mut reserved, mut allocated, mut active, mut requested) = (0, 0, 0, 0);
    let mut end = 0;
    for segment in allocator.segments() {
        assert!(segment.address >= end, "segments overlap");
        end = segment.address;
        reserved += segment.size;
        for block in &segment.blocks {
            assert_eq!(block.address, end);
            end += block.size;
            allocated += if block.state == BlockState::Allocated { block.size } else { 0 };
            active += if block.state == BlockState::Free { 0 } else { block.size };
            requested += block.requested;
        }
        assert_eq!(end, segment.address + segment.size);
        let free_neighbours = segment.blocks.windows(2).any(|pair| pair.iter().all(|b| b.state == BlockState::Free));
        assert!(!free_neighbours, "free blocks that are not merged: {segment:?}");
    }
    assert_eq!(
        (reserved, allocated, active, requested),
        (counters.reserved.current, counters.allocated.current, counters.active.current, counters.requested.current)
    );
    assert!(reserved <= device.total.saturating_sub(device.taken));
}

proptest! {
    #[test]
    fn any_calls_leave_balanced_books(
        settings in settings(),
        device in device(),
        calls in proptest::collection::vec(call(), 1..300),
    ) {
        let mut allocator = Allocator::new(settings, device);
        let mut blocks = Vec::new();
        for call in &calls {
            let failed = make(&mut allocator, call, &mut blocks);
            if let Err(AllocatorError::PoolImbalance(_)) = failed {
                break;
            }
            balance(&allocator, &device);
        }
    }

    #[test]
    fn any_text_is_settings_or_an_error(
        text in "[a-z_0-9:,\\[\\]>. ]{0,40}|max_split_size_mb.{0,12}|roundup_power2_divisions:\\[.{0,20}",
    ) {
        if let Err(error) = text.parse::<Settings>() {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn a_block_is_freed_once() {
    let mut allocator = Allocator::new(Settings::default(), Device::with_memory(1 << 30));
    let block = allocator.alloc(1000, 0).unwrap();
    allocator.free(block).unwrap();
    assert_eq!(allocator.free(block), Err(AllocatorError::NotInUse));
    let again = allocator.alloc(1000, 0).unwrap();
    assert_eq!(allocator.free(block), Err(AllocatorError::NotInUse), "the block is another's now");
    allocator.free(again).unwrap();
}

#[test]
fn handles_of_other_allocators_are_refused() {
    let mut one = Allocator::new(Settings::default(), Device::with_memory(1 << 30));
    let mut other = one.clone();
    let block = one.alloc(1000, 0).unwrap();
    assert_eq!(other.free(block), Err(AllocatorError::NotInUse));
    assert_eq!(other.record_stream(block, 1), Err(AllocatorError::NotInUse));
}

#[test]
fn nothing_is_free_of_charge_and_an_exabyte_too_much() {
    let mut allocator = Allocator::new(Settings::default(), Device::with_memory(1 << 30));
    let nothing = allocator.alloc(0, 0).unwrap();
    assert_eq!(allocator.place(nothing), Ok((0, 0)));
    allocator.free(nothing).unwrap();
    allocator.free(nothing).unwrap();
    assert_eq!(allocator.counters().reserved.peak, 0);
    let error = allocator.alloc(u64::MAX, 0).unwrap_err();
    assert_eq!(error, AllocatorError::Exabyte(u64::MAX));
    assert!(error.to_string().contains("18446744073709551615 bytes were asked for"), "{error}");
}
