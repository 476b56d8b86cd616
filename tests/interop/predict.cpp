/// @file Our side of the comparison with diffusers, for tests/interop: predictions and start noise as files.
///   interop_predict MODEL LORA|none INPUTS OUTPUT   one forward in fp32; INPUTS holds the model's inputs by name
///   interop_predict noise SEED INDEX CHANNELS HEIGHT WIDTH OUTPUT   the start noise of a sample, [1, C, H, W]
#include <execution/forward.hpp>
#include <flux2/layout.hpp>
#include <flux2/lora_family.hpp>
#include <flux2/model.hpp>
#include <lora/lora.hpp>
#include <run/export.hpp>
#include <sampling/sample.hpp>
#include <weights/model_files.hpp>
#include <weights/tensor_file.hpp>
#include <weights/write.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace trainer;

void write_one(const std::string& file, const std::string& name, const at::Tensor& tensor) {
  const std::vector<std::pair<std::string, at::Tensor>> tensors{{name, tensor}};
  weights::write_safetensors(file, tensors, {{"format", "pt"}});
}

void predict(const std::string& model, const std::string& lora, const std::string& inputs, const std::string& output) {
  assembly::LoadedModel loaded;
  const std::shared_ptr<weights::ModelFiles> files = weights::ModelFiles::open(model);
  loaded.source = flux2::map_weights(files);
  assembly::SourceBuilder builder(*loaded.source, assembly::BuildOptions{});
  const std::string config = files->config().value_or("");
  const Options options("model", Table{{"round_time", {false}}});
  loaded.model = std::make_unique<flux2::Flux2Model>(ModelContext{options, *loaded.source, config, builder});
  loaded.inventory = builder.inventory();
  loaded.lora_family = flux2::lora_family();
  const auto adapter = trainer::lora::make_lora(
      Options("adapter", Table{{"init", {std::string("file")}}, {"targets", {std::string("default")}}}));
  if (lora != "none")
    run::apply_adapter(loaded, *adapter, adapter::as_adapter(adapter::read_lora(lora, loaded.lora_family), "lora"),
                       at::kFloat);
  const weights::TensorFile file(inputs, {weights::Profile::strict, weights::ReadMode::copy});
  NamedTensors tensors;
  for (const std::string& name : file.names()) tensors[name] = file.read(name);
  write_one(output, "prediction", execution::predict(*loaded.model, tensors, loaded.memory));
}

int predict_from(const std::vector<std::string>& arguments) {
  if (arguments.size() == 4) {
    predict(arguments[0], arguments[1], arguments[2], arguments[3]);
    return 0;
  }
  if (arguments.size() != 7 || arguments[0] != "noise") {
    std::fprintf(stderr,
                 "usage: interop_predict MODEL LORA|none INPUTS OUTPUT\n"
                 "       interop_predict noise SEED INDEX CHANNELS HEIGHT WIDTH OUTPUT\n");
    return 2;
  }
  const auto number = [&](std::size_t i) { return std::stoll(arguments[i]); };
  const at::Tensor noise = sampling::start_noise(static_cast<uint64_t>(number(1)), static_cast<uint64_t>(number(2)),
                                                 number(3), number(4), number(5));
  write_one(arguments[6], "noise", noise.select(2, 0).contiguous());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return predict_from({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
