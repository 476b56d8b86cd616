/// @file `trainer export LORA --format NAME`: a LoRA file in the form that another program reads.
#include <adapter/lora_file.hpp>
#include <assembly/lora_families.hpp>
#include <base/files.hpp>
#include <base/printable.hpp>
#include <engine/commands.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdio>

namespace trainer::engine {
namespace {

namespace fs = std::filesystem;

fs::path output_of(const ExportRequest& request, const fs::path& source) {
  if (!request.output.empty()) return request.output;
  return source.parent_path() / (source.stem().string() + "-" + request.format + ".safetensors");
}

}  // namespace

int command_export(const ExportRequest& request) {
  const fs::path source = request.file;
  const weights::TensorFile file(source, {weights::Profile::compat, weights::ReadMode::copy});
  plugin::Loader loader(request.plugins);
  const assembly::KnownLora known = assembly::open_lora(loader, file, request.model);
  const LoraFormat& format = adapter::format_named(known.family, request.format);
  const fs::path output = output_of(request, source);
  require_replaceable(output);
  if (fs::exists(output) && !request.force)
    throw Error(ExitCode::usage, output.string() + " exists: give another --output, or --force to replace it");
  adapter::write_lora(output, known.lora, known.family, format);
  if (request.json) {
    std::printf("%s\n", printable_json(nlohmann::ordered_json{{"lora", output.string()},
                                                              {"family", known.family.name},
                                                              {"from", known.lora.format},
                                                              {"format", format.name},
                                                              {"readers", format.readers},
                                                              {"layers", known.lora.layers.size()}})
                            .c_str());
  } else {
    std::printf("%s\n", output.c_str());
    std::fprintf(stderr, "%s LoRA on %zu layers, %s to %s, for %s\n", known.family.name.c_str(),
                 known.lora.layers.size(), known.lora.format.c_str(), format.name.c_str(), format.readers.c_str());
  }
  return 0;
}

}  // namespace trainer::engine
