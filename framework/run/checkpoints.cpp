#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <base/log.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/patience.hpp>
#include <recipe/load.hpp>
#include <run/checkpoints.hpp>
#include <run/results.hpp>

namespace trainer::run {

namespace fs = std::filesystem;

Checkpoints::Checkpoints(const recipe::Recipe& recipe, const plugin::Found& found, RunFolder& folder,
                         identity::Fingerprints now, identity::EarlierForm earlier_form, Record& record,
                         distributed::Group& ranks)
    : recipe_(recipe),
      found_(found),
      folder_(folder),
      now_(std::move(now)),
      earlier_form_(std::move(earlier_form)),
      record_(record),
      ranks_(ranks) {}

std::optional<checkpoint::Loaded> Checkpoints::find() {
  std::optional<checkpoint::Loaded> found;
  if (ranks_.writer()) {  // alone, since looking renames what is damaged
    std::vector<std::string> notes;
    if (!folder_.resumes_itself())
      found = checkpoint::load(folder_.resume().from);
    else if (folder_.resume().from != "never")
      found = folder_.checkpoints().newest(notes);
    for (const std::string& note : notes) log_warning(note);
    if (found) require_same(*found);
  }
  const std::string folder = ranks_.from_writer(found ? fs::absolute(found->folder).string() : "");
  if (!found && !folder.empty()) found = checkpoint::load(folder);
  return found;
}

void Checkpoints::require_same(const checkpoint::Loaded& found) const {
  const checkpoint::Progress saved = checkpoint::read_progress(found);
  const std::vector<int64_t> steps = folder_.checkpoints().steps();
  if (!folder_.resumes_itself() && !steps.empty() && steps.back() > saved.step)
    throw Error(ExitCode::locked, folder_.path().string() + ": holds checkpoints of later steps than " +
                                      folder_.resume().from + "; choose another run.output, so that they are not lost");
  const std::string& with = folder_.resume().with;
  identity::require_same_recipe(identity::parse_recipe(saved.recipe, found_), recipe_, folder_.path(),
                                checkpoint::kTheCheckpoint, with);
  const std::map<std::string, std::string> now = now_.read();
  identity::require_same_content(found, now, recipe_, with, earlier_form_);
  if (const std::string changed = identity::inexact_because(found, now); !changed.empty())
    log_warning("the run goes on, but perhaps not to the last bit as it would have without a stop:" + changed);
}

void Checkpoints::resume(Training& training) {
  const std::optional<checkpoint::Loaded> found = find();
  if (!found) return;
  const checkpoint::Progress saved = checkpoint::read_progress(*found);
  training.restore(*found, saved.step);
  if (recipe_.train.threads > 0 && recipe_.train.threads != saved.threads)
    log_warning("train.threads = " + std::to_string(recipe_.train.threads) +
                " is not used: the checkpoint was made with " + std::to_string(saved.threads) +
                " threads, and results depend on it");
  at::set_num_threads(saved.threads);
  record_.set_loss(saved.loss);
  last_ = found->folder;
  if (!ranks_.writer() || !folder_.resumes_itself()) return;
  if (const std::string later = identity::later_result(folder_.path(), saved.step); !later.empty()) log_warning(later);
}

void Checkpoints::begin(Training& training) {
  if (!ranks_.writer()) return;
  folder_.require_mine();  // loading takes minutes
  const int64_t done = training.steps_done();
  if (done > 0 && done < recipe_.run.steps) {
    attempts_.emplace(folder_.path(), done, recipe_.checkpoint.fallback, [this] { return folder_.is_mine(); });
    if (!attempts_->warning().empty()) log_warning(attempts_->warning());
  }
  checkpoint::note_committed(
      folder_.path(), folder_.run_id(),
      last_.empty() ? std::nullopt : std::optional(checkpoint::Committed{done, fs::absolute(last_)}));
}

void Checkpoints::reserve_room(Training& training) {
  if (!ranks_.writer() || training.steps_done() >= recipe_.run.steps) return;
  folder_.checkpoints().reserve_for(content(training), [this](const std::string& problem) { record_.warn(problem); });
}

bool Checkpoints::is_due(int64_t step) const {
  return step >= recipe_.run.steps || (recipe_.checkpoint.every > 0 && step % recipe_.checkpoint.every == 0);
}

checkpoint::Content Checkpoints::content(Training& training) const {
  checkpoint::Progress progress;
  progress.step = training.steps_done();
  progress.threads = at::get_num_threads();
  progress.loss = record_.loss();
  progress.recipe = recipe::to_toml(recipe_);
  return training.capture(progress);
}

void Checkpoints::save(Training& training, Save when) {
  if (!ranks_.writer()) return;
  const distributed::LongWork work(ranks_, "saving", distributed::LongWork::When::always);
  const int64_t step = training.steps_done();
  const auto note = [&](const std::string& problem) {
    record_.warn("the checkpoint of step " + std::to_string(step) + " is not saved yet: " + problem);
  };
  checkpoint::Patience patience;
  patience.room = std::chrono::seconds(recipe_.checkpoint.final_save_wait);
  try {
    last_ = record_.during("save", [&] {
      return folder_.checkpoints().save(
          step, [&] { return content(training); }, now_.read(), when == Save::at_the_end, patience, note);
    });
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::io || when == Save::on_the_way) throw;
    std::string text = error.what();
    if (!last_.empty())
      text += "\n  The newest checkpoint is " + last_.string() + "; the same command goes on from there.";
    throw Error(ExitCode::io, text + export_at_least(training, folder_), error.code());
  }
  try {
    folder_.checkpoints().rotate({recipe_.checkpoint.keep, recipe_.checkpoint.keep_every});
  } catch (const Error& error) {  // too many checkpoints are no reason to end a run
    if (error.exit_code() == ExitCode::locked) throw;
    record_.warn(std::string("older checkpoints stay: ") + error.what());
  }
}

void Checkpoints::reached(int64_t step) {
  if (attempts_) attempts_->reached(step);
}

void Checkpoints::release_room() {
  if (ranks_.writer()) folder_.checkpoints().release_reserve();
}

void Checkpoints::end() {
  if (attempts_) attempts_->ended_well();
}

}  // namespace trainer::run
