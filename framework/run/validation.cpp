#include <base/heap.hpp>
#include <checkpoint/signals.hpp>
#include <run/validation.hpp>

namespace trainer::run {

Validation::Validation(const recipe::Recipe& recipe, execution::BatchSource* held_out, Stop& stop, Record& record,
                       distributed::Group& ranks)
    : recipe_(recipe), held_out_(held_out), stop_(stop), record_(record), ranks_(ranks) {}

bool Validation::is_due(int64_t step) const {
  const int64_t every = recipe_.validation.every;
  return held_out_ != nullptr && (step == 0 || step >= recipe_.run.steps || (every > 0 && step % every == 0));
}

void Validation::measure(Training& training) {
  const int64_t done = training.steps_done();
  // Saved first, so that a run that is ended meanwhile measures when it goes on.
  if (!ranks_.from_writer(holds_step(record_.validations(), done) ? "measured" : "").empty()) return;
  const distributed::LongWork work(ranks_, "validating", distributed::LongWork::When::all_live);
  record_.console().clear();
  const optim::Averaged averaged = training.averaged();
  const assembly::LoadedModel& loaded = training.model();
  ValidationParts parts{*loaded.model, training.objective(), loaded.memory, loaded.placement, *held_out_};
  parts.timesteps = recipe_.validation.timesteps;
  parts.seed = static_cast<uint64_t>(recipe_.validation.seed);
  parts.plugins = training.plugins();
  const std::string step = "step " + std::to_string(done);
  ValidationWatch watch;
  watch.progress = [&](int64_t count, int64_t total) { record_.console().phase(count, total, "validation, " + step); };
  watch.stop = [] { return checkpoint::stop_signal() != 0; };
  watch.warn = [&](const std::string& problem) { record_.warn("no validation at " + step + ": " + problem); };
  const auto result = record_.during("validate", [&] { return validate(parts, ranks_, watch); });
  return_freed_memory();
  if (!result && checkpoint::stop_signal() != 0) stop_.note_cut_short();
  if (!result || !ranks_.writer()) return;
  for (const std::string& file : result->bad)
    record_.warn("the validation loss of " + file + " at " + step + " is not finite");
  record_.validation(done, *result);
  record_.info("validation loss at " + step + ": " + std::to_string(result->loss));
}

}  // namespace trainer::run
