#include <base/files.hpp>
#include <base/unfinished.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/recovery.hpp>
#include <identity/same_run.hpp>
#include <run/run_folder.hpp>
#include <sampling/samples.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::run {

namespace fs = std::filesystem;

RunFolder::RunFolder(const recipe::Recipe& recipe, Resume resume, const plugin::Found& found, distributed::Group& ranks)
    : recipe_(recipe), resume_(std::move(resume)), ranks_(ranks), path_(recipe.run.output) {
  if (!ranks_.writer()) return;
  lock_.emplace(path_);
  for (const char* below : {"", "lora", "model"}) remove_unfinished(path_ / below);
  sampling::SampleFolder(path_ / "samples").remove_unfinished();
  run_id_ = identity::run_id_of(path_);
  checkpoints_.emplace(path_, run_id_,
                       checkpoint::PlacesOptions{recipe.checkpoint.fallback, recipe.checkpoint.reserve,
                                                 [this] { lock_->require_mine(); }});
  identity::require_resumable(resume_.from, path_, checkpoints_->steps());
  require_recipe(found);
}

void RunFolder::require_recipe(const plugin::Found& found) const {
  if (resume_.from == "never") return;
  const auto require_same = [&](const std::string& stored, const std::string& what) {
    identity::require_same_recipe(identity::parse_recipe(stored, found), recipe_, path_, what, resume_.with);
  };
  if (const std::optional<checkpoint::Before> before = checkpoint::recipe_before(path_, recipe_.checkpoint.fallback))
    require_same(before->recipe, before->what);
  if (resumes_itself()) return checkpoint::require_committed(path_, checkpoints_->steps());
  // It is read whole, and looked at again, when all else is there.
  if (const std::optional<std::string> stored = checkpoint::recipe_in(resume_.from))
    require_same(*stored, checkpoint::kTheCheckpoint);
}

void RunFolder::require_shared() {
  run_id_ = ranks_.from_writer(run_id_);
  if (!fs::exists(path_ / "run.json") || identity::run_id_of(path_) != run_id_)
    throw Error(ExitCode::not_found, path_.string() +
                                         ": what rank 0 writes there is not seen here; run.output and cache.folder "
                                         "must lie on a file system that all machines share");
}

void RunFolder::require_mine() { lock_->require_mine(); }

bool RunFolder::is_mine() { return lock_->is_mine(); }

bool RunFolder::resumes_itself() const { return !identity::names_checkpoint(resume_.from); }

std::vector<fs::path> RunFolder::resumable() const {
  if (!resumes_itself()) return {resume_.from};
  return checkpoint::newest_first(checkpoint::roots_of(path_, recipe_.checkpoint.fallback));
}

fs::path RunFolder::result_file(bool adapter, int64_t step) const {
  const fs::path folder = path_ / (adapter ? "lora" : "model");
  make_folders(folder);
  return folder / (recipe_.run.name + "-" + std::to_string(step) + ".safetensors");
}

fs::path RunFolder::grid_file(int64_t step) const {
  return path_ / "samples" / (recipe_.run.name + "-" + std::to_string(step) + ".png");
}

}  // namespace trainer::run
