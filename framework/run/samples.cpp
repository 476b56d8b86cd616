#include <c10/util/Exception.h>
#include <base/heap.hpp>
#include <base/log.hpp>
#include <checkpoint/signals.hpp>
#include <run/samples.hpp>

namespace trainer::run {
namespace {

namespace fs = std::filesystem;

/// Ends drawing at once, instead of minutes later; the run then saves and says how to go on.
void stop_if_asked() {
  if (checkpoint::stop_signal() != 0) throw Error(ExitCode::preempted, "stopped");
}

}  // namespace

Samples::Samples(const recipe::Recipe& recipe, const sampling::SamplePlan& plan, Decoder decoder, RunFolder& folder,
                 Stop& stop, Record& record, distributed::Group& ranks)
    : recipe_(recipe),
      plan_(plan),
      decoder_(std::move(decoder)),
      folder_(folder),
      pictures_(folder.path() / "samples"),
      stop_(stop),
      record_(record),
      ranks_(ranks) {}

bool Samples::is_due(int64_t step) const { return recipe_.sample.every > 0 && step % recipe_.sample.every == 0; }

bool Samples::drawn(int64_t step) const {
  return fs::exists(folder_.grid_file(step)) && !pictures_.load(step, plan_).empty();
}

void Samples::draw(Training& training, const std::string& title) {
  if (!ranks_.writer() || plan_.prompts.empty()) return;
  const distributed::LongWork work(ranks_, "drawing samples", distributed::LongWork::When::all_live);
  record_.console().clear();
  const int64_t step = training.steps_done();
  const optim::Averaged averaged = training.averaged();
  try {
    folder_.require_mine();
    const auto progress = [&](int64_t done, int64_t total) {
      record_.console().phase(done, total, "samples " + title);
      ranks_.progress("drawing samples, " + std::to_string(done) + " of " + std::to_string(total));
      ranks_.check();
    };
    const sampling::Pictures pictures = record_.during("sample", [&] {
      return sampling::draw(training.model(), plan_, decoder_, {progress, stop_if_asked});
    });
    pictures_.save(step, plan_, pictures);
    std::vector<std::pair<std::string, sampling::Pictures>> columns;
    if (sampling::Pictures before = pictures_.load(0, plan_); step > 0 && !before.empty())
      columns.emplace_back("before", std::move(before));
    columns.emplace_back(title, pictures);
    last_ = sampling::write_grid(folder_.grid_file(step), plan_, columns);
    return_freed_memory();
  } catch (const c10::Error& error) {
    log_warning("samples at step " + std::to_string(step) + ": " + error.what_without_backtrace());
  } catch (const Error& error) {
    ranks_.check();  // another rank that is gone ends this one, too
    if (error.exit_code() == ExitCode::preempted) stop_.note_cut_short();
    if (error.exit_code() == ExitCode::locked) throw;
    log_warning("samples at step " + std::to_string(step) + ": " + error.what());
  }
}

void Samples::draw_missing(Training& training) {
  const int64_t step = training.steps_done();
  if (ranks_.writer() && is_due(step) && !drawn(step) && pictures_.may_hold(step, plan_))
    draw(training, "step " + std::to_string(step));
}

void Samples::draw_last(Training& training) {
  if (!ranks_.writer()) return;
  const int64_t step = training.steps_done();
  if (step == training.first_step() && drawn(step))
    last_ = folder_.grid_file(step);
  else if (recipe_.sample.after)
    draw(training, "after");
}

}  // namespace trainer::run
