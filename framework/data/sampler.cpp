#include <data/sampler.hpp>

#include <base/rng.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

namespace trainer::data {
namespace {

// Streams and cycles draw from RngStream::order: permutations under (epoch, bucket), cycles under (cycle, this mark).
constexpr uint64_t kCycleMark = ~uint64_t{0};

void check(const SamplerOptions& options) {
  const auto refuse = [](const char* smaller, int64_t a, const char* larger, int64_t b) {
    throw Error(ExitCode::bad_recipe, "train: " + std::string(smaller) + " (" + std::to_string(a) + ") must divide " +
                                          larger + " (" + std::to_string(b) + ")");
  };
  const auto [batch, micro, group] = std::tuple(options.batch_size, options.micro_batch_size, options.group_size);
  if (batch < 1) throw Error(ExitCode::bad_recipe, "train: batch_size must be at least 1");
  if (micro < 1 || batch % micro != 0) refuse("micro_batch_size", micro, "batch_size", batch);
  if (group < 1 || batch % group != 0) refuse("group_size", group, "batch_size", batch);
  if (group % micro != 0) refuse("micro_batch_size", micro, "group_size", group);
}

}  // namespace

Sampler::Sampler(std::span<const SamplerItem> items, const SamplerOptions& options) : options_(options) {
  if (options_.group_size == 0) options_.group_size = options_.batch_size;
  check(options_);
  if (items.empty()) throw Error(ExitCode::bad_input, "there is no sample to train on");
  std::map<uint64_t, std::vector<std::size_t>> by_bucket;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].repeats < 1) throw Error(ExitCode::bad_recipe, "data: repeats must be at least 1");
    auto& instances = by_bucket[items[i].bucket];
    instances.insert(instances.end(), static_cast<std::size_t>(items[i].repeats), i);
    epoch_size_ += static_cast<uint64_t>(items[i].repeats);
  }
  for (auto& [bucket, instances] : by_bucket) streams_.push_back({bucket, std::move(instances)});
  permutations_.resize(streams_.size());
}

std::vector<Draw> Sampler::batch(uint64_t step, int64_t micro) const {
  if (micro < 0 || micro >= micros())
    throw Error(ExitCode::failed, "micro-batch " + std::to_string(micro) + " of a step");
  const auto group_size = static_cast<uint64_t>(options_.group_size);
  const uint64_t first =
      step * static_cast<uint64_t>(options_.batch_size) + static_cast<uint64_t>(micro * options_.micro_batch_size);
  const uint64_t group = first / group_size, cycle_number = group / epoch_size_;
  const Service service = cycle(cycle_number)[group % epoch_size_];
  const uint64_t turns = cycle_number * streams_[service.stream].instances.size() + service.turn;
  std::vector<Draw> draws;
  for (uint64_t key = first; key < first + static_cast<uint64_t>(options_.micro_batch_size); ++key) {
    const bool drop = options_.caption_dropout > 0 &&
                      KeyedRng(options_.seed, RngStream::caption_dropout, 0, key).uniform() < options_.caption_dropout;
    draws.push_back({at(service.stream, turns * group_size + key % group_size), key, drop});
  }
  return draws;
}

const std::vector<Sampler::Service>& Sampler::cycle(uint64_t number) const {
  if (number == cycle_number_) return cycle_;
  struct Place {
    double time;  // in [0, 1) of the cycle
    Service service;
  };
  std::vector<Place> places;
  places.reserve(epoch_size_);
  KeyedRng rng(options_.seed, RngStream::order, number, kCycleMark);
  for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
    const uint64_t turns = streams_[stream].instances.size();
    for (uint64_t turn = 0; turn < turns; ++turn) {
      places.push_back({(static_cast<double>(turn) + rng.uniform()) / static_cast<double>(turns), {stream, turn}});
    }
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.time, a.service.stream, a.service.turn) < std::tie(b.time, b.service.stream, b.service.turn);
  });
  cycle_.clear();
  for (const Place& place : places) cycle_.push_back(place.service);
  cycle_number_ = number;
  return cycle_;
}

std::size_t Sampler::at(std::size_t stream, uint64_t position) const {
  const auto& [bucket, instances] = streams_[stream];
  Permutation& memory = permutations_[stream];
  const uint64_t epoch = position / instances.size();
  if (memory.epoch != epoch) {
    memory = {epoch, permutation(instances.size(), KeyedRng(options_.seed, RngStream::order, epoch, bucket))};
  }
  return instances[memory.order[position % instances.size()]];
}

}  // namespace trainer::data
