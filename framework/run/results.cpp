#include <base/log.hpp>
#include <base/printable.hpp>
#include <base/units.hpp>
#include <nlohmann/json.hpp>
#include <run/export.hpp>
#include <run/results.hpp>
#include <weights/tensor_file.hpp>

#include <cstdio>

namespace trainer::run {
namespace {

namespace fs = std::filesystem;

/// Whether it is a file of tensors from its first to its last byte; the values are not looked at.
bool is_whole(const fs::path& file) {
  try {
    const weights::TensorFile opened(file);
    return true;
  } catch (const Error&) {
    return false;
  }
}

fs::path file_of(const Training& training, const RunFolder& folder) {
  return folder.result_file(training.model().adapter != nullptr, training.steps_done());
}

/// With the averaged weights, when the recipe has them.
fs::path export_now(Training& training, RunFolder& folder) {
  folder.require_mine();
  const optim::Averaged averaged = training.averaged();
  return export_trained(training.model(), file_of(training, folder), training.steps_done());
}

}  // namespace

Results::Results(const recipe::Recipe& recipe, RunFolder& folder, Record& record, distributed::Group& ranks)
    : recipe_(recipe), folder_(folder), record_(record), ranks_(ranks) {}

void Results::export_weights(Training& training) {
  if (!ranks_.writer()) return;
  const distributed::LongWork work(ranks_, "exporting", distributed::LongWork::When::always);
  last_ = record_.during("save", [&] { return export_now(training, folder_); });
}

void Results::export_missing(Training& training) {
  if (!ranks_.writer()) return;
  last_ = file_of(training, folder_);
  if (training.steps_done() > training.first_step() || !is_whole(last_)) export_weights(training);
}

std::string export_at_least(Training& training, RunFolder& folder) {
  if (training.steps_done() == training.first_step()) return {};
  try {
    return "\n  The result of step " + std::to_string(training.steps_done()) +
           " is written: " + export_now(training, folder).string();
  } catch (const Error&) {  // that does not fit either; the caller reports what stands in the way
    return {};
  }
}

void Results::print_json(const Training& training, const fs::path& samples, const fs::path& checkpoint) const {
  nlohmann::ordered_json json{{"steps", training.steps_done()},
                              {"loss", record_.loss().value()},
                              {"lora", last_.string()},
                              {"samples", samples.string()},
                              {"checkpoint", checkpoint.string()},
                              {"peak_memory", metrics::memory_use().peak},
                              {"bytes", metrics::to_json(record_.bytes(training))}};
  if (!record_.validations().empty()) json["validation"] = to_json(record_.validations());
  std::printf("%s\n", printable_json(json).c_str());
}

void Results::print(const Training& training, const fs::path& samples, const fs::path& checkpoint) {
  if (!ranks_.writer()) return;
  if (record_.json()) return print_json(training, samples, checkpoint);
  const auto line = [](const std::string& what, const std::string& text) {
    std::printf("%-11s %s\n", what.c_str(), text.c_str());
  };
  if (const Record::EarlyLoss early = record_.early_loss(); early.step > 0)
    std::printf("loss        %.4f (step %lld) -> %.4f, both smoothed\n", early.value,
                static_cast<long long>(early.step), record_.loss().value());
  if (const std::string validation = in_words(record_.validations()); !validation.empty())
    line("validation", validation);
  const bool adapter = training.model().adapter != nullptr;
  line(adapter ? "LoRA" : "model", printable(last_.string()));
  if (!adapter && recipe_.pictures())
    line("", "draw with it: trainer sample " + printable(recipe_.file) +
                 " --set model.path=" + printable(last_.string()) + " --prompt \"...\"");
  if (!samples.empty()) line("samples", printable(samples.string()));
  line("checkpoint", printable(checkpoint.string()));
  line("log", printable((folder_.path() / "log.jsonl").string()));
  if (record_.on_tensorboard()) line("TensorBoard", printable((folder_.path() / "tb").string()));
  line("peak memory", format_bytes(static_cast<double>(metrics::memory_use().peak)));
  for (const auto& [device, numbers] : record_.bytes(training)) line(device, in_words(numbers));
}

}  // namespace trainer::run
