#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <base/heartbeat.hpp>
#include <execution/forward.hpp>
#include <plugin/guard.hpp>
#include <run/fixed_random.hpp>
#include <run/validation_loss.hpp>

#include <cmath>
#include <limits>
#include <utility>

namespace trainer::run {
namespace {

/// What a rank tells the others: of each of its samples losses, then times; at the end whether all are there.
class Numbers {
 public:
  Numbers(int64_t samples, int64_t timesteps, int ranks)
      : timesteps_(timesteps),
        ranks_(ranks),
        each_((samples + ranks - 1) / ranks),
        data_(at::full({2 * each_ * timesteps + 1}, std::numeric_limits<double>::quiet_NaN(), at::kDouble)) {}

  void set(int64_t sample, int64_t timestep, double loss, double time) {
    const int64_t at = (sample / ranks_) * timesteps_ + timestep;
    data_.mutable_data_ptr<double>()[at] = loss;
    data_.mutable_data_ptr<double>()[each_ * timesteps_ + at] = time;
  }
  void complete() { data_.mutable_data_ptr<double>()[2 * each_ * timesteps_] = 1; }
  void join(distributed::Group& ranks) { data_ = ranks.joined(data_).contiguous(); }
  /// After `join`.
  [[nodiscard]] bool all_complete() const {
    for (int rank = 0; rank < ranks_; ++rank)
      if (of(rank, 2 * each_ * timesteps_) != 1) return false;
    return true;
  }
  [[nodiscard]] double loss(int64_t sample, int64_t timestep) const {
    return of(sample % ranks_, (sample / ranks_) * timesteps_ + timestep);
  }
  [[nodiscard]] double time(int64_t sample, int64_t timestep) const {
    return of(sample % ranks_, (each_ + sample / ranks_) * timesteps_ + timestep);
  }

 private:
  [[nodiscard]] double of(int64_t rank, int64_t at) const {
    return data_.const_data_ptr<double>()[rank * (2 * each_ * timesteps_ + 1) + at];
  }
  int64_t timesteps_, ranks_, each_;
  at::Tensor data_;
};

/// This rank's samples; false when it was stopped on the way.
bool measure(const ValidationParts& parts, const distributed::Group& ranks, const ValidationWatch& watch,
             Numbers& numbers) {
  const FixedRandom random(parts.seed, parts.timesteps);
  const int64_t samples = parts.data.micro_batches();
  for (int64_t sample = ranks.rank(); sample < samples; sample += ranks.size()) {
    for (int64_t timestep = 0; timestep < parts.timesteps; ++timestep) {
      beat();
      if (watch.stop && watch.stop()) return false;
      const auto [example, loss] = loss_at(parts, random, timestep, sample);
      const double time = example.times.empty() ? std::numeric_limits<double>::quiet_NaN() : example.times.front();
      numbers.set(sample, timestep, loss.item<double>(), time);
    }
    if (watch.progress) watch.progress(std::min(sample + ranks.size(), samples), samples);
  }
  return true;
}

ValidationLoss summed(const ValidationParts& parts, const Numbers& numbers) {
  ValidationLoss result;
  const int64_t samples = parts.data.micro_batches();
  const auto count = static_cast<double>(samples);
  for (int64_t timestep = 0; timestep < parts.timesteps; ++timestep) {
    double loss = 0, time = 0;
    for (int64_t sample = 0; sample < samples; ++sample) {
      loss += numbers.loss(sample, timestep);
      time += numbers.time(sample, timestep);
      if (!std::isfinite(numbers.loss(sample, timestep)))
        for (const std::string& file : parts.data.files(timestep, sample)) result.bad.push_back(file);
    }
    result.losses.push_back(loss / count);
    if (!std::isnan(time)) result.times.push_back(time / count);
    result.loss += loss / count / static_cast<double>(parts.timesteps);
  }
  return result;
}

}  // namespace

std::pair<Example, at::Tensor> loss_at(const ValidationParts& parts, const Random& random, int64_t timestep,
                                       int64_t sample) {
  const Batch batch = parts.data.batch(timestep, sample);
  return plugin::guard(parts.plugins, "validation", [&] {
    Example example = parts.objective.prepare(batch, parts.model, random);
    at::Tensor loss =
        execution::loss_without_gradient(parts.model, parts.objective, example, parts.memory, parts.placement);
    return std::pair(std::move(example), std::move(loss));
  });
}

std::optional<ValidationLoss> validate(const ValidationParts& parts, distributed::Group& ranks,
                                       const ValidationWatch& watch) {
  Numbers numbers(parts.data.micro_batches(), parts.timesteps, ranks.size());
  try {
    if (measure(parts, ranks, watch, numbers)) numbers.complete();
  } catch (const c10::Error& error) {  // a loss that cannot be had is no reason to lose a run
    if (watch.warn) watch.warn(error.what_without_backtrace());
  } catch (const Error& error) {
    ranks.check();  // nor is it one to go on without the others
    if (watch.warn) watch.warn(error.what());
  }
  numbers.join(ranks);
  if (!numbers.all_complete()) return std::nullopt;
  return summed(parts, numbers);
}

}  // namespace trainer::run
