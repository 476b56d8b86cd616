#include <base/files.hpp>
#include <base/hash.hpp>
#include <base/utf8.hpp>
#include <nlohmann/json.hpp>
#include <text/added_tokens.hpp>
#include <text/bpe.hpp>
#include <text/post_processor.hpp>
#include <text/pre_tokenizer.hpp>
#include <text/tokenizer.hpp>
#include <text/tokenizer_file.hpp>
#include <text/utf8.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>

namespace trainer::text {
namespace {

const nlohmann::json& part_of(const nlohmann::json& root, const char* key) {
  static const nlohmann::json kNull;
  const auto found = root.find(key);
  return found == root.end() ? kNull : *found;
}

Error text_error(const std::string& what) { return {ExitCode::bad_input, what, "TOK_TEXT"}; }

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerFile file, const nlohmann::json& root, const std::string& name, std::string content_hash)
      : bpe(std::move(file), name),
        normalizer(part_of(root, "normalizer"), name + ": normalizer"),
        pre_tokenizer(part_of(root, "pre_tokenizer"), name + ": pre_tokenizer"),
        added(part_of(root, "added_tokens"), bpe.vocabulary(), normalizer, name),
        post_processor(
            part_of(root, "post_processor"),
            [this](int64_t id) { return added.find(id) != nullptr || bpe.vocabulary().token(id).has_value(); },
            name + ": post_processor"),
        hash(std::move(content_hash)) {
    max_id = std::max(bpe.vocabulary().max_id(), added.max_id());
  }

  Bpe bpe;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  PostProcessor post_processor;
  std::string hash;
  int64_t max_id = 0;
};

Tokenizer Tokenizer::load(const std::filesystem::path& tokenizer_json) {
  return parse(read_file(tokenizer_json, kMaxTokenizerBytes, "tokenizer"), tokenizer_json.string());
}

Tokenizer Tokenizer::parse(std::string_view content, const std::string& name) {
  TokenizerFile file = parse_tokenizer_file(content, name);
  const std::shared_ptr<const nlohmann::json> root = file.root;
  return Tokenizer(std::make_shared<const Impl>(std::move(file), *root, name, xxh128(content)));
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (text.size() > kMaxTextBytes)
    throw text_error("text of " + std::to_string(text.size()) + " bytes; at most 16 MiB can be tokenized");
  if (const std::size_t bad = invalid_utf8(text); bad != std::string_view::npos)
    throw text_error("text is not valid UTF-8 at byte " + std::to_string(bad) + "; save it as UTF-8");
  std::vector<int64_t> ids;
  impl_->added.split(
      text, impl_->normalizer,
      [&](std::string_view part) {
        for (const std::string& piece : impl_->pre_tokenizer.apply(part)) impl_->bpe.encode(piece, ids);
      },
      [&](int32_t id) { ids.push_back(id); });
  return add_special_tokens ? impl_->post_processor.apply(std::move(ids)) : ids;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const int64_t id : ids) {
    if (const AddedToken* added = impl_->added.find(id)) {
      if (!(added->special && skip_special_tokens)) bytes += added->content;
      continue;
    }
    const std::optional<std::string_view> token = impl_->bpe.vocabulary().token(id);
    if (!token)
      throw Error(ExitCode::bad_input,
                  "token id " + std::to_string(id) + " is not in the vocabulary; the largest id is " +
                      std::to_string(impl_->max_id),
                  "TOK_ID");
    bytes += from_byte_alphabet(*token);
  }
  return replace_invalid_utf8(bytes);
}

std::optional<int64_t> Tokenizer::token_id(std::string_view token) const {
  const std::optional<int32_t> id = impl_->added.id(token);
  return id ? id : impl_->bpe.vocabulary().id(token);
}

std::size_t Tokenizer::vocabulary_size() const {
  return impl_->bpe.vocabulary().size() + impl_->added.beyond_vocabulary();
}

int64_t Tokenizer::max_id() const { return impl_->max_id; }

const std::string& Tokenizer::content_hash() const { return impl_->hash; }

}  // namespace trainer::text
