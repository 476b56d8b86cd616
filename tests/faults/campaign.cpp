#include "campaign.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <checkpoint/run_lock.hpp>
#include <trainer/sdk/error.hpp>

#include <support/parity.hpp>

#include <unistd.h>

#include <cstdlib>

namespace trainer::faults {

namespace fs = std::filesystem;

Scratch::Scratch() {
  // Thousands of real fsyncs would take minutes and prove nothing here: memory where there is some.
  const fs::path memory = "/dev/shm";
  const bool writable = ::access(memory.c_str(), W_OK) == 0;
  std::string name = ((writable ? memory : fs::temp_directory_path()) / "trainer-faults-XXXXXX").string();
  path_ = ::mkdtemp(name.data());
  inner_ = path_ / "run";
}

Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

const fs::path& Scratch::fresh() {
  fs::remove_all(inner_);
  fs::create_directory(inner_);
  return inner_;
}

checkpoint::Content state_of(int64_t step) {
  checkpoint::Content content;
  content.tensors["param.a"] = at::arange(2500, at::kFloat) / 7 + step;
  content.tensors["param.half"] = (at::arange(5, at::kFloat) / 3 + step).to(at::kBFloat16);
  content.tensors["average.updates"] = at::full({}, step, at::kLong);
  content.state = "{\"step\": " + std::to_string(step) + "}\n";
  return content;
}

void prepare(const fs::path& run) {
  checkpoint::Store store(run, "before");
  for (const int64_t step : {1, 2}) store.save(step, state_of(step), {});
}

void save_third(const fs::path& run, const std::function<void()>& committed, const checkpoint::Keep& keep) {
  checkpoint::Store store(run, "run");
  store.save(3, state_of(3), {{"data", "abc"}});
  committed();
  store.rotate(keep);
}

void save_first(const fs::path& scratch, const std::function<void()>& committed) {
  const fs::path run = scratch / kNewRun;
  const checkpoint::RunLock lock(run);
  checkpoint::Store store(run, "run");
  store.save(1, state_of(1), {});
  committed();
}

std::string Verdict::text() const {
  return std::to_string(cases) + " cases, " + std::to_string(unrecoverable) + " unrecoverable, " +
         std::to_string(lost) + " committed steps lost, " + std::to_string(damaged) + " damaged accepted, " +
         std::to_string(unusable) + " unusable afterwards" + (first_problem.empty() ? "" : "; first: " + first_problem);
}

void judge(const fs::path& run, int64_t committed, const std::string& name, Verdict& verdict) {
  ++verdict.cases;
  const auto note = [&](int64_t& count, const std::string& problem) {
    ++count;
    if (verdict.first_problem.empty()) verdict.first_problem = name + ": " + problem;
  };
  const auto compare = [&](const checkpoint::Loaded& found) {
    const int64_t step = found.manifest.step;
    if (step < committed) note(verdict.lost, "step " + std::to_string(step) + " is the newest");
    const checkpoint::Content expected = state_of(step);
    bool same = expected.state == found.content.state && expected.tensors.size() == found.content.tensors.size();
    for (const auto& [key, tensor] : expected.tensors)
      same = same && found.content.tensors.contains(key) && test::same_bits(tensor, found.content.tensors.at(key));
    if (!same) note(verdict.damaged, "step " + std::to_string(step) + " has another state");
  };
  try {
    checkpoint::Store store(run, "after");
    std::vector<std::string> notes;
    const std::optional<checkpoint::Loaded> found = store.newest(notes);
    if (!found && committed > 0) return note(verdict.unrecoverable, "no checkpoint is found");
    for (const auto& entry : fs::directory_iterator(run / "ckpt"))
      if (const std::string left = entry.path().filename(); left.starts_with('.'))
        note(verdict.unusable, left + " was left behind");
    if (found) compare(*found);
    store.save(9, state_of(9), {});
    store.rotate({2});
    if (store.newest(notes)->manifest.step != 9) note(verdict.unusable, "the next save is not the newest");
  } catch (const std::exception& error) {
    note(verdict.unrecoverable, error.what());
  }
}

}  // namespace trainer::faults
