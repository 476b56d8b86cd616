/// @file What a run leaves in its folder: checkpoints, results, pictures.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <base/files.hpp>
#include <base/heap.hpp>
#include <base/log.hpp>
#include <checkpoint/patience.hpp>
#include <checkpoint/signals.hpp>
#include <recipe/load.hpp>
#include <run/export.hpp>
#include <identity/same_run.hpp>
#include <run/run.hpp>
#include <weights/tensor_file.hpp>

namespace trainer::run {
namespace {

namespace fs = std::filesystem;

/// Ends drawing at once, instead of minutes later; the run then saves and says how to go on.
void stop_if_asked() {
  if (checkpoint::stop_signal() != 0) throw Error(ExitCode::preempted, "stopped");
}

/// Whether it is a file of tensors from its first to its last byte; the values are not looked at.
bool is_whole(const fs::path& file) {
  try {
    const weights::TensorFile opened(file);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool Run::is_saved(int64_t step) const {
  return step >= recipe_.run.steps || (recipe_.checkpoint.every > 0 && step % recipe_.checkpoint.every == 0);
}

bool Run::is_sampled(int64_t step) const { return recipe_.sample.every > 0 && step % recipe_.sample.every == 0; }

void Run::save_on_the_way(const std::function<void()>& save) {
  try {
    save();
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::io) throw;
    // A full disk may have room again at the next save; nothing that was saved before is lost.
    warn("step " + std::to_string(steps_done()) + " is not completely saved, training goes on: " + error.what());
  }
}

void Run::draw_samples(const std::string& title) {
  if (!ranks_.writer() || prepared_.samples.prompts.empty()) return;
  const distributed::LongWork work(ranks_, "drawing samples", distributed::LongWork::When::all_live);
  console_.clear();
  const optim::Averaged averaged(ema_ ? &*ema_ : nullptr);
  try {
    lock_->require_mine();
    const auto progress = [&](int64_t done, int64_t total) {
      console_.phase(done, total, "samples " + title);
      ranks_.progress("drawing samples, " + std::to_string(done) + " of " + std::to_string(total));
      ranks_.check();
    };
    const sampling::Pictures pictures = phases_.during("sample", [&] {
      return sampling::draw(loaded_, prepared_.samples, [this] { return assembly_.encoders.autoencoder(); }, {progress, stop_if_asked});
    });
    samples_.save(steps_done(), prepared_.samples, pictures);
    std::vector<std::pair<std::string, sampling::Pictures>> columns;
    if (sampling::Pictures before = samples_.load(0, prepared_.samples); steps_done() > 0 && !before.empty())
      columns.emplace_back("before", std::move(before));
    columns.emplace_back(title, pictures);
    last_grid_ = sampling::write_grid(grid_file(), prepared_.samples, columns);
    return_freed_memory();
  } catch (const c10::Error& error) {  // a picture that cannot be drawn is no reason to lose a run
    log_warning("samples at step " + std::to_string(steps_done()) + ": " + error.what_without_backtrace());
  } catch (const Error& error) {
    ranks_.check();  // nor is it one to go on without the others
    cut_short_ |= error.exit_code() == ExitCode::preempted;
    if (error.exit_code() == ExitCode::locked) throw;
    log_warning("samples at step " + std::to_string(steps_done()) + ": " + error.what());
  }
}

checkpoint::Content Run::state() {
  checkpoint::Progress progress;
  progress.step = steps_done();
  progress.threads = at::get_num_threads();
  progress.loss = record_.loss();
  progress.recipe = recipe::to_toml(recipe_);
  return checkpoint::capture(live(), progress);
}

void Run::save_checkpoint(Save when) {
  if (!ranks_.writer()) return;
  const distributed::LongWork work(ranks_, "saving", distributed::LongWork::When::always);
  const auto note = [this](const std::string& problem) {
    warn("the checkpoint of step " + std::to_string(steps_done()) + " is not saved yet: " + problem);
  };
  checkpoint::Patience patience;
  patience.room = std::chrono::seconds(recipe_.checkpoint.final_save_wait);
  try {
    last_checkpoint_ = phases_.during("save", [&] {
      return places_->save(
          steps_done(), [this] { return state(); }, fingerprints(), when == Save::at_the_end, patience, note);
    });
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::io || when == Save::on_the_way) throw;
    std::string text = error.what();
    if (!last_checkpoint_.empty())
      text += "\n  The newest checkpoint is " + last_checkpoint_.string() + "; the same command goes on from there.";
    throw Error(ExitCode::io, text + export_at_least(), error.code());
  }
  try {
    places_->rotate({recipe_.checkpoint.keep, recipe_.checkpoint.keep_every});
  } catch (const Error& error) {  // too many checkpoints are no reason to end a run
    if (error.exit_code() == ExitCode::locked) throw;
    warn(std::string("older checkpoints stay: ") + error.what());
  }
}

fs::path Run::export_file() const {
  const fs::path folder = folder_ / (loaded_.adapter ? "lora" : "model");
  make_folders(folder);
  return folder / (recipe_.run.name + "-" + std::to_string(steps_done()) + ".safetensors");
}

fs::path Run::grid_file() const {
  return folder_ / "samples" / (recipe_.run.name + "-" + std::to_string(steps_done()) + ".png");
}

void Run::export_weights() {
  if (!ranks_.writer()) return;
  const distributed::LongWork work(ranks_, "exporting", distributed::LongWork::When::always);
  lock_->require_mine();
  const optim::Averaged averaged(ema_ ? &*ema_ : nullptr);
  last_export_ = phases_.during("save", [&] { return export_trained(loaded_, export_file(), steps_done()); });
}

std::string Run::export_at_least() {
  if (steps_done() == first_step_) return {};
  try {
    lock_->require_mine();
    const optim::Averaged averaged(ema_ ? &*ema_ : nullptr);
    const fs::path file = export_trained(loaded_, export_file(), steps_done());
    return "\n  The result of step " + std::to_string(steps_done()) + " is written: " + file.string();
  } catch (const Error&) {  // that does not fit either; what stands in the way is told
    return {};
  }
}

void Run::make_up() {
  const int64_t step = steps_done();
  if (is_validated(step)) validate();
  if (step == 0) {
    if (recipe_.sample.before) draw_samples("before");
    return;
  }
  if (identity::names_checkpoint(request_.resume) || !ranks_.writer() || checkpoint::stop_signal() != 0) return;
  save_on_the_way([&] {
    if (is_saved(step) && !is_whole(export_file())) export_weights();
  });
  const bool drawn = fs::exists(grid_file()) && !samples_.load(step, prepared_.samples).empty();
  if (is_sampled(step) && !drawn && samples_.may_hold(step, prepared_.samples))
    draw_samples("step " + std::to_string(step));
}

void Run::leave_results() {
  places_->release_reserve();  // room for the export, too
  if (attempts_) attempts_->ended_well();
  // The same command again after the last step makes only what is missing.
  const bool trained = steps_done() > first_step_;
  last_export_ = export_file();
  if (trained || !is_whole(last_export_)) export_weights();
  const bool drawn = !trained && fs::exists(grid_file()) && !samples_.load(steps_done(), prepared_.samples).empty();
  if (drawn)
    last_grid_ = grid_file();
  else if (recipe_.sample.after)
    draw_samples("after");
  print_results();
}

bool Run::finish() {
  cut_short_ = false;  // training went on after what was cut short in it
  save_checkpoint(Save::at_the_end);
  if (is_validated(steps_done())) validate();
  if (ranks_.writer()) leave_results();
  stop_ = ranks_.first(cut_short_ ? checkpoint::stop_signal() : 0);
  if (stop_.rank < 0) return true;
  log_info("stopped by signal " + std::to_string(stop_.value) +
           " after the last step; run the same command again for what is missing");
  return false;
}

}  // namespace trainer::run
