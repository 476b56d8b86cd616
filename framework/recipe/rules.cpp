#include <base/units.hpp>
#include <recipe/rules.hpp>

#include <recipe/paths.hpp>
#include <recipe/write.hpp>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace trainer::recipe {
namespace {

namespace fs = std::filesystem;

/// File names of 255 bytes are the longest that Linux takes: room for the step and what a temporary name adds.
constexpr std::size_t kLongestName = 200;

class Rules {
 public:
  Rules(const Recipe& recipe, const Node& root, Problems& problems)
      : recipe_(recipe), root_(root), problems_(problems) {}

  void check() {
    check_name();
    check_batch();
    check_schedule();
    check_fused_backward();
    check_memory();
    check_checkpoint();
    check_devices();
    check_data();
    check_validation();
    if (!recipe_.pictures()) check_texts();
    check_adapter();
  }

 private:
  /// Where a key was written; where it was not, its section or the start of the file.
  SourcePosition at(std::string_view section, std::string_view key) const {
    const Node* node = root_.find(section);
    if (node == nullptr) return root_.position;
    SourcePosition position = node->position;
    while (node != nullptr && !key.empty()) {
      const std::size_t dot = key.find('.');
      node = node->find(key.substr(0, dot));
      key = dot == std::string_view::npos ? std::string_view() : key.substr(dot + 1);
      if (node != nullptr) position = node->position;
    }
    return position;
  }
  bool given(std::string_view section, std::string_view key) const {
    const Node* node = root_.find(section);
    return node != nullptr && node->find(key) != nullptr;
  }

  void check_name() {
    const std::string& name = recipe_.run.name;
    const bool bad = name.find('/') != std::string::npos || name.starts_with('.') || name.starts_with('-');
    bool control = false;
    for (const char c : name) control = control || static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    if (name.size() > kLongestName)
      problems_.add(at("run", "name"), "run.name: has " + std::to_string(name.size()) + " bytes; at most " +
                                           std::to_string(kLongestName) + " fit into the names of the run's files");
    if (bad || control) {
      problems_.add(at("run", "name"),
                    "run.name: " + in_quotes(name) +
                        " is no file name: no \"/\" or control characters, no \".\" or \"-\" at the start");
    }
  }

  void check_batch() {
    const Train& train = recipe_.train;
    for (const char* key : {"batch_size", "micro_batch_size"})
      if (given("train", key) && problems_.has(at("train", key)))
        return;  // judged by a default, not by what is written
    if (train.batch_size % train.micro_batch_size == 0) return;
    const char* key = given("train", "micro_batch_size") ? "micro_batch_size" : "batch_size";
    problems_.add(at("train", key), "train.micro_batch_size: " + std::to_string(train.micro_batch_size) +
                                        " does not divide train.batch_size " + std::to_string(train.batch_size));
  }

  void check_schedule() {
    const int64_t warmup = recipe_.optimizer.warmup_steps;
    if (given("run", "steps") && problems_.has(at("run", "steps"))) return;
    if (warmup <= recipe_.run.steps) return;
    problems_.add(at("optimizer", "schedule.warmup_steps"),
                  "optimizer.schedule.warmup_steps: " + std::to_string(warmup) + " is more than the " +
                      std::to_string(recipe_.run.steps) + " of run.steps: lr would never be reached");
  }

  void check_checkpoint() {
    const Checkpoint& checkpoint = recipe_.checkpoint;
    for (const char* key : {"every", "keep", "keep_every"})
      if (given("checkpoint", key) && problems_.has(at("checkpoint", key))) return;
    if (checkpoint.keep_every == 0) return;
    const SourcePosition position = at("checkpoint", "keep_every");
    if (checkpoint.keep == 0)
      problems_.add(position, "checkpoint.keep_every: checkpoint.keep = 0 keeps all; leave out one of the two");
    else if (checkpoint.every == 0 || checkpoint.keep_every % checkpoint.every != 0)
      problems_.add(position, "checkpoint.keep_every: " + std::to_string(checkpoint.keep_every) +
                                  " is no multiple of checkpoint.every " + std::to_string(checkpoint.every) +
                                  ": there would be no checkpoint of most of its steps");
  }

  void check_fused_backward() {
    if (!recipe_.optimizer.fused_backward) return;
    const Train& train = recipe_.train;
    const SourcePosition position = at("optimizer", "fused_backward");
    const auto where = [this](const char* key) {
      return given("train", key) ? " (" + at("train", key).text() + ")" : std::string(" (its default)");
    };
    if (train.max_grad_norm > 0)
      problems_.add(position,
                    "optimizer.fused_backward: parameters are updated before the norm of all gradients is known, so "
                    "train.max_grad_norm" +
                        where("max_grad_norm") +
                        " cannot be kept to; set train.max_grad_norm = 0, or leave out optimizer.fused_backward");
    if (train.micro_batch_size != train.batch_size)
      problems_.add(position,
                    "optimizer.fused_backward: parameters are updated in the first backward, so gradients cannot be "
                    "accumulated over " +
                        std::to_string(train.batch_size / train.micro_batch_size) +
                        " micro-batches; set train.micro_batch_size" + where("micro_batch_size") +
                        " to the train.batch_size of " + std::to_string(train.batch_size) +
                        ", or leave out optimizer.fused_backward");
  }

  void check_memory() {
    if (recipe_.memory.budget == 0 || recipe_.memory.strategies.empty()) return;
    problems_.add(at("memory", "budget"),
                  "memory.budget: the planner chooses the strategies; leave out memory.budget or memory.strategies "
                  "(where an extended recipe has the latter: memory.strategies = [])");
  }

  void check_devices() {
    for (const std::string& device : recipe_.placement.devices) {
      check_device(device, "placement", given("placement", "device") ? "device" : "devices");
    }
    check_device(recipe_.text_encoder.device, "text_encoder", "device");
    check_device(recipe_.autoencoder.device, "autoencoder", "device");
    check_simulated();
  }

  void check_simulated() {
    const Placement& placement = recipe_.placement;
    for (const std::string& text : placement.simulated)
      if (parse_bytes(text).value_or(0) <= 0)
        problems_.add(at("placement", "simulated"), "placement.simulated: " + in_quotes(text) +
                                                        " is no amount of memory; write for example \"24GB\"");
    const auto simulated = [](const std::string& device) { return device.starts_with("sim"); };
    if (!placement.simulated.empty() && std::none_of(placement.devices.begin(), placement.devices.end(), simulated) &&
        !simulated(recipe_.text_encoder.device) && !simulated(recipe_.autoencoder.device))
      problems_.add(at("placement", "simulated"),
                    "placement.simulated: no simulated device is used; name \"sim:0\" in placement.devices, or leave "
                    "the key out");
  }

  /// "cpu", "cuda", "cuda:1": which devices there are is seen when the run starts.
  void check_device(const std::string& device, const std::string& section, const std::string& key) {
    const std::size_t colon = device.find(':');
    const std::string type = device.substr(0, colon);
    const std::string index = colon == std::string::npos ? "0" : device.substr(colon + 1);
    const bool good = !type.empty() && type.find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos &&
                      !index.empty() && index.size() <= 3 && index.find_first_not_of("0123456789") == std::string::npos;
    const bool left_out = device.empty() && section != "placement";
    if (good || left_out) return;
    problems_.add(at(section, key), section + "." + key + ": " + in_quotes(device) +
                                        " is no device; write \"cpu\" or \"cuda:0\", with the number of the card");
  }

  void check_data() {
    for (std::size_t i = 0; i < recipe_.data.size(); ++i) {
      const Data& data = recipe_.data[i];
      if (data.metadata.empty()) continue;
      const std::string extension = fs::path(data.metadata).extension().string();
      if (extension == ".jsonl" || extension == ".csv") continue;
      problems_.add(data.position, "data." + std::to_string(i) + ".metadata: expected a .jsonl or .csv file, found " +
                                       in_quotes(data.metadata));
    }
  }

  /// Something is left to train on, and what is said of validation has something to be about.
  void check_validation() {
    const bool all =
        std::all_of(recipe_.data.begin(), recipe_.data.end(), [](const Data& one) { return one.validation; });
    if (all && !recipe_.data.empty())
      problems_.add(recipe_.data.front().position,
                    "data: every source has validation = true; at least one must be there to train on");
    if (recipe_.validates() || given("validation", "fraction")) return;
    for (const char* key : {"every", "timesteps", "seed"})
      if (given("validation", key))
        problems_.add(at("validation", key), std::string("validation.") + key +
                                                 ": no samples are held out; set validation.fraction, or validation = "
                                                 "true in a [[data]] table");
  }

  /// What is about pictures has no meaning for texts; nothing is silently ignored.
  void check_texts() {
    const std::string why = ": the objective " + in_quotes(recipe_.objective.kind) + " trains on texts alone; ";
    const Node* data = root_.find("data");
    const auto* sources = data == nullptr ? nullptr : data->get_if<Node::List>();
    for (std::size_t i = 0; sources != nullptr && i < sources->size(); ++i)
      for (const std::string_view key : kPictureKeys)
        if (const Node* node = (*sources)[i].find(key))
          problems_.add(node->position,
                        "data." + std::to_string(i) + "." + std::string(key) + why + "leave the key out");
    if (!recipe_.sample.prompts.empty())
      problems_.add(at("sample", "prompts"), "sample.prompts" + why + "there is nothing to draw");
  }

  void check_adapter() {
    if (!recipe_.adapter) return;
    const Table& options = recipe_.adapter->options.values();
    const auto it = options.find("init");
    const auto* init = it == options.end() ? nullptr : it->second.get_if<std::string>();
    if (init == nullptr) return;
    const bool from_file = *init == "file", path = !recipe_.adapter->path.empty();
    const bool refused = given("adapter", "path") && problems_.has(at("adapter", "path"));
    if (from_file && !path && !refused)
      problems_.add(at("adapter", "init"), "adapter.init: \"file\" needs adapter.path, the LoRA to start from");
    if (path && !from_file)
      problems_.add(at("adapter", "path"), "adapter.path: it is only used with adapter.init = \"file\"");
  }

  const Recipe& recipe_;
  const Node& root_;
  Problems& problems_;
};

/// A recipe's file name as a run name.
std::string name_from(const std::string& file) {
  std::string name = fs::path(file).stem().string();
  while (!name.empty() && (name.front() == '.' || name.front() == '-')) name.erase(0, 1);
  std::size_t cut = std::min(name.size(), kLongestName);
  while (cut < name.size() && (static_cast<unsigned char>(name[cut]) & 0xC0) == 0x80) --cut;  // whole letters
  name.resize(cut);
  return name.empty() ? "run" : name;
}

}  // namespace

std::vector<int64_t> Placement::simulated_bytes() const {
  std::vector<int64_t> bytes;
  for (const std::string& text : simulated) bytes.push_back(parse_bytes(text).value_or(0));
  return bytes;
}

bool Recipe::validates() const {
  return validation.fraction > 0 ||
         std::any_of(data.begin(), data.end(), [](const Data& one) { return one.validation; });
}

void check_rules(const Recipe& recipe, const Node& root, Problems& problems) { Rules(recipe, root, problems).check(); }

void fill_in_paths(Recipe& recipe) {
  if (recipe.run.name.empty()) recipe.run.name = name_from(recipe.file);
  if (recipe.run.output.empty()) recipe.run.output = absolute_path("runs/" + recipe.run.name, {}, true);
  if (recipe.cache.folder.empty()) recipe.cache.folder = recipe.run.output + "/cache";
  if (recipe.text_encoder.tokenizer.empty() && !recipe.text_encoder.path.empty()) {
    recipe.text_encoder.tokenizer = (fs::path(recipe.text_encoder.path).parent_path() / "tokenizer").string();
  }
}

}  // namespace trainer::recipe
