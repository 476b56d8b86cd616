/// @file Virtual clocks of the simulated devices' streams: what an operation or a copy costs, and when it ends.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <string>

namespace trainer::sim {

bool timeline_on();
/// An operation on the current stream of `device`.
void account(int device, const std::string& op, at::ArrayRef<at::Tensor> in, at::ArrayRef<at::Tensor> out);
/// A copy, on the current streams of both memories.
void account_copy(const at::Tensor& from, const at::Tensor& to, bool non_blocking);

struct BlockHeader;
/// record_stream: the block's memory is used again only when what `stream` does with it is over.
void record_use(BlockHeader& block, c10::StreamId stream);
/// When a block is freed: notes an early reuse where another stream that was not recorded still uses it.
void check_uses(const BlockHeader& block);

/// Current stream of a device in this thread; 0 is the default one.
c10::StreamId current_stream(int device);
void set_current_stream(int device, c10::StreamId stream);
/// What an event needs: the stream's clock now, and a stream that waits for a time.
double clock_of(int device, c10::StreamId stream);
void wait_until(int device, c10::StreamId stream, double time);

}  // namespace trainer::sim
