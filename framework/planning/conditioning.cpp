#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <planner/shape_kernels.hpp>
#include <planning/conditioning.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <sstream>

namespace trainer::planning {
namespace {

constexpr int64_t kUsualTokens = 512;

/// What the encoder makes of one text; nullopt when it cannot tell without values or files.
std::optional<NamedTensors> encoded(assembly::Assembly& assembly, bool& guessed) {
  try {
    return planner::on_shapes("the text encoder", [&] {
      const at::NoGradGuard no_grad;
      const c10::DeviceGuard guard(assembly.devices.dry(assembly.devices.of(assembly.recipe.text_encoder)));
      const std::vector<std::string> caption{"a caption"};
      const assembly::Encoders::OnShapes dry = assembly.encoders.text_encoder_on_shapes();
      NamedTensors made = std::move(dry.encoder->encode(caption).at(0));
      guessed = dry.length_guessed();
      return made;
    });
  } catch (const std::exception&) {
    return std::nullopt;  // `check` says why when it opens the encoder itself
  }
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << at::IntArrayRef(shape);
  return text.str();
}

/// `got` of the encoder against the sides that the model declares, -1 for any.
void require_fit(const recipe::Component& encoder, const InputSpec& input, const std::vector<int64_t>& got) {
  if (!input.shape) return;
  const std::vector<int64_t>& wanted = *input.shape;
  const bool fits =
      got.size() == wanted.size() && std::equal(got.begin(), got.end(), wanted.begin(),
                                                [](int64_t has, int64_t needs) { return needs < 0 || has == needs; });
  if (fits) return;
  throw Error(ExitCode::bad_recipe,
              encoder.position.text() + ": the text encoder \"" + encoder.kind + "\" gives \"" + input.name + "\" as " +
                  text_of(got) + " for each text, the model takes " + text_of(wanted) +
                  " (-1: any); choose the encoder and the options (layers, width) that the model was trained with",
              "TEXT_SHAPE");
}

}  // namespace

std::optional<Conditioning> foretell_conditioning(assembly::Assembly& assembly, const Model& model,
                                                  const Objective& objective) {
  const std::vector<std::string> made = objective.provides();
  const recipe::Component& encoder = assembly.recipe.text_encoder;
  bool guessed = false;
  const std::optional<NamedTensors> texts = encoded(assembly, guessed);
  Conditioning result;
  for (const InputSpec& input : model.inputs()) {
    if (!input.required || std::find(made.begin(), made.end(), input.name) != made.end()) continue;
    if (texts && texts->contains(input.name)) {
      const at::Tensor& tensor = texts->find(input.name)->second;
      require_fit(encoder, input, tensor.sizes().vec());
      result.tensors.push_back({input.name, tensor.scalar_type(), tensor.sizes().vec()});
      continue;
    }
    if (!input.shape) return std::nullopt;
    std::vector<int64_t> sides = *input.shape;
    for (int64_t& side : sides)
      if (side < 0)
        side = assembly.encoders.longest_text().value_or(kUsualTokens), guessed |= !assembly.encoders.longest_text();
    const at::ScalarType dtype = input.below > 0 ? at::kLong : assembly::dtype_of(encoder.dtype);
    result.tensors.push_back({input.name, dtype, std::move(sides)});
  }
  if (guessed) result.note = "the length of a text is a guess: nothing tells it before the captions are encoded";
  return result;
}

}  // namespace trainer::planning
