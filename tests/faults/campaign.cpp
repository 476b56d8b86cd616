#include "campaign.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <base/files.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/earlier.hpp>
#include <checkpoint/places.hpp>
#include <checkpoint/run_lock.hpp>
#include <trainer/sdk/error.hpp>
#include <weights/tensor_file.hpp>
#include <weights/write.hpp>

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

std::vector<Loss> losses(int random) {
  std::vector<Loss> all;
  for (const auto names : {Loss::Names::lost, Loss::Names::kept})
    for (const auto data : {Loss::Data::lost, Loss::Data::kept}) all.push_back({data, names, 0});
  for (int i = 0; i < random; ++i) {
    const auto seed = static_cast<uint64_t>(i) + 1;
    all.push_back({Loss::Data::random, Loss::Names::random, seed});
    all.push_back({Loss::Data::torn, i % 2 == 0 ? Loss::Names::kept : Loss::Names::random, seed});
  }
  return all;
}

std::string Verdict::text() const {
  return std::to_string(cases) + " cases, " + std::to_string(unrecoverable) + " unrecoverable, " +
         std::to_string(lost) + " committed steps lost, " + std::to_string(damaged) + " damaged accepted, " +
         std::to_string(unusable) + " unusable afterwards" + (first_problem.empty() ? "" : "; first: " + first_problem);
}

namespace {

bool same_tensors(const NamedTensors& one, const NamedTensors& two) {
  bool same = one.size() == two.size();
  for (const auto& [key, tensor] : one) same = same && two.contains(key) && test::same_bits(tensor, two.at(key));
  return same;
}

/// What a start found, compared with what was saved.
class Judgement {
 public:
  Judgement(std::string name, Verdict& verdict) : name_(std::move(name)), verdict_(verdict) { ++verdict_.cases; }

  void note(int64_t Verdict::*count, const std::string& problem) {
    ++(verdict_.*count);
    if (verdict_.first_problem.empty()) verdict_.first_problem = name_ + ": " + problem;
  }
  void compare(const std::optional<checkpoint::Loaded>& found, int64_t committed) {
    if (!found) {
      if (committed > 0) note(&Verdict::unrecoverable, "no checkpoint is found");
      return;
    }
    const int64_t step = found->manifest.step;
    if (step < committed) note(&Verdict::lost, "step " + std::to_string(step) + " is the newest");
    const checkpoint::Content expected = state_of(step);
    if (expected.state != found->content.state || !same_tensors(expected.tensors, found->content.tensors))
      note(&Verdict::damaged, "step " + std::to_string(step) + " has another state");
  }
  void nothing_half_made(const fs::path& ckpt) {
    if (!fs::exists(ckpt)) return;
    for (const auto& entry : fs::directory_iterator(ckpt))
      if (const std::string left = entry.path().filename(); left.starts_with('.'))
        note(&Verdict::unusable, left + " was left behind");
  }

 private:
  std::string name_;
  Verdict& verdict_;
};

}  // namespace

void judge(const fs::path& run, int64_t committed, const std::string& name, Verdict& verdict) {
  Judgement judgement(name, verdict);
  try {
    checkpoint::Store store(run, "after");
    std::vector<std::string> notes;
    const std::optional<checkpoint::Loaded> found = store.newest(notes);
    judgement.compare(found, committed);
    if (!found && committed > 0) return;
    judgement.nothing_half_made(run / "ckpt");
    store.save(9, state_of(9), {});
    store.rotate({2});
    if (store.newest(notes)->manifest.step != 9) judgement.note(&Verdict::unusable, "the next save is not the newest");
  } catch (const std::exception& error) {
    judgement.note(&Verdict::unrecoverable, error.what());
  }
}

namespace {

constexpr const char* kRun = "run";
constexpr const char* kRunId = "ab";

checkpoint::Places places_below(const fs::path& root) {
  return {root / kRun, kRunId, {.fallback = root / "spare", .reserve = true}};
}

void save_in(checkpoint::Places& places, int64_t step, bool last, const checkpoint::Places::Note& note) {
  const checkpoint::Patience at_once{.room = std::chrono::milliseconds(0), .sleep = [](std::chrono::milliseconds) {}};
  places.save(
      step, [step] { return state_of(step); }, {}, last, at_once, note);
}

fs::path exported(const fs::path& root, int64_t step) {
  return root / kRun / "lora" / ("x-" + std::to_string(step) + ".safetensors");
}

void export_step(const fs::path& root, int64_t step) {
  const NamedTensors tensors = state_of(step).tensors;
  make_folders(exported(root, step).parent_path());
  weights::write_safetensors(exported(root, step), {tensors.begin(), tensors.end()}, {});
}

/// Exports that are there, each with what was exported.
void judge_exports(const fs::path& root, Judgement& judgement) {
  for (const int64_t step : {1, 3}) {
    if (!fs::exists(exported(root, step))) continue;
    const weights::TensorFile file(exported(root, step), {weights::Profile::strict, weights::ReadMode::copy});
    NamedTensors tensors;
    for (const std::string& name : file.names()) tensors[name] = file.read(name);
    if (!same_tensors(tensors, state_of(step).tensors)) judgement.note(&Verdict::damaged, "an export");
  }
  if (!fs::exists(exported(root, 1))) judgement.note(&Verdict::lost, "the export of step 1");
}

}  // namespace

void prepare_placed(const fs::path& root) {
  make_folders(root / kRun);
  write_file_atomically(root / kRun / "run.json", R"({"run_id": "ab", "trainer": "1"})");
  checkpoint::Places places = places_below(root);
  for (const int64_t step : {1, 2}) save_in(places, step, false, [](const std::string&) {});
  export_step(root, 1);
}

void save_placed(const fs::path& root, const std::function<void()>& committed, const checkpoint::Places::Note& note) {
  checkpoint::Places places = places_below(root);
  places.reserve_for(state_of(2), note);
  save_in(places, 3, true, note);
  committed();
  places.rotate({2});
  places.release_reserve();
  export_step(root, 3);
}

void judge_placed(const fs::path& root, int64_t committed, const std::string& name, Verdict& verdict) {
  Judgement judgement(name, verdict);
  try {
    const fs::path run = root / kRun;
    if (checkpoint::stored_run_id(run) != kRunId) return judgement.note(&Verdict::unrecoverable, "another id");
    checkpoint::Places places = places_below(root);
    checkpoint::require_committed(run, places.steps());
    std::vector<std::string> notes;
    judgement.compare(places.newest(notes), committed);
    for (const fs::path& folder : checkpoint::roots_of(run, root / "spare")) judgement.nothing_half_made(folder);
    judge_exports(root, judgement);
    save_in(places, 9, true, [&](const std::string& problem) { judgement.note(&Verdict::unusable, problem); });
    places.rotate({2});
    const auto noted = checkpoint::committed(run);
    if (!noted || noted->step != 9) judgement.note(&Verdict::unusable, "the next save is not noted");
    if (places.newest(notes)->manifest.step != 9) judgement.note(&Verdict::unusable, "the next save is not the newest");
  } catch (const std::exception& error) {
    judgement.note(&Verdict::unrecoverable, error.what());
  }
}

}  // namespace trainer::faults
