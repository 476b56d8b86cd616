#include <base/printable.hpp>
#include <nlohmann/json.hpp>
#include <text/bpe.hpp>
#include <text/utf8.hpp>
#include <trainer/sdk/error.hpp>

#include <queue>
#include <tuple>
#include <utility>

namespace trainer::text {
namespace {

// Captions repeat few words; a full cache stays as it is.
constexpr std::size_t kMaxCachedPieces = 16384;
constexpr std::size_t kMaxCachedBytes = 64;

struct Candidate {
  int32_t rank;
  int32_t position;
  int32_t id;
  bool operator<(const Candidate& other) const {  // std::priority_queue takes the largest first
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

/// A value for a message, shortened.
std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kShown = 80;
  const std::string text = value.dump();
  return printable(text.size() <= kShown ? text : text.substr(0, kShown) + "...");
}

}  // namespace

struct Bpe::Symbol {
  int32_t id;
  int32_t previous;
  int32_t next;  ///< -1 at the end
  bool alive = true;
};

Bpe::Bpe(TokenizerFile file, const std::string& name)
    : name_(name), vocabulary_(std::move(file.vocabulary)), arena_(std::move(file.arena)) {
  read_options(file);
  if (vocabulary_.size() == 0) fail("TOK_FIELD", "model.vocab is missing or empty");
  read_merges(file);
}

void Bpe::fail(const char* code, const std::string& what) const {
  throw Error(ExitCode::bad_input, name_ + ": " + what, code);
}

void Bpe::read_options(const TokenizerFile& file) {
  const auto found = file.root->find("model");
  if (found == file.root->end() || !found->is_object()) fail("TOK_FIELD", "\"model\" is missing");
  const nlohmann::json& model = *found;
  const auto type = model.find("type");
  if (type != model.end() && *type != "BPE")
    fail("TOK_UNSUPPORTED", "model.type is " + shown(*type) + "; only byte-level BPE tokenizers can be used");
  if (!model.contains("merges")) fail("TOK_FIELD", "model.merges is missing");
  const auto flag = [&](const char* key) {
    const auto value = model.find(key);
    if (value == model.end() || value->is_null()) return false;
    if (!value->is_boolean()) fail("TOK_FIELD", std::string("model.") + key + " must be true or false");
    return value->get<bool>();
  };
  ignore_merges_ = flag("ignore_merges");
  fuse_unknown_ = flag("fuse_unk");
  if (flag("byte_fallback"))
    fail("TOK_UNSUPPORTED",
         "model.byte_fallback belongs to SentencePiece vocabularies; only byte-level BPE can be used");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix", "dropout"}) {
    const auto value = model.find(key);
    if (value != model.end() && !value->is_null() && *value != "" && *value != 0)
      fail("TOK_UNSUPPORTED", std::string("model.") + key + " is " + shown(*value) + "; only null can be used");
  }
  const auto unknown = model.find("unk_token");
  if (unknown == model.end() || unknown->is_null()) return;
  if (!unknown->is_string()) fail("TOK_FIELD", "model.unk_token must be a token or null");
  unknown_ = vocabulary_.id(unknown->get_ref<const std::string&>());
  if (!unknown_) fail("TOK_INCONSISTENT", "model.unk_token " + shown(*unknown) + " is not in model.vocab");
}

void Bpe::read_merges(const TokenizerFile& file) {
  merges_.reserve(file.merges.size());
  std::string joined;
  for (std::size_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& [left, right] = file.merges[rank];
    const std::string where = "model.merges[";
    const auto id_of = [&](std::string_view token) {
      const std::optional<int32_t> id = vocabulary_.id(token);
      if (!id)
        fail("TOK_INCONSISTENT",
             where + std::to_string(rank) + "]: token " + in_quotes(token) + " is not in model.vocab");
      return *id;
    };
    joined.assign(left).append(right);
    const Merge merge{static_cast<int32_t>(rank), id_of(joined)};
    if (!merges_.emplace(pair_key(id_of(left), id_of(right)), merge).second)
      fail("TOK_DUPLICATE", where + std::to_string(rank) + "]: the merge of " + in_quotes(left) + " and " +
                                in_quotes(right) + " appears twice");
  }
}

std::vector<Bpe::Symbol> Bpe::symbols_of(std::string_view piece) const {
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size() / 2 + 1);
  bool after_unknown = false;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t start = at;
    next_character(piece, at);
    const std::string_view character = piece.substr(start, at - start);
    std::optional<int32_t> id = vocabulary_.id(character);
    const bool unknown = !id;
    if (unknown && !unknown_)
      fail("TOK_UNKNOWN",
           "the vocabulary has no token for " + in_quotes(character) + " (byte alphabet) and no unk_token");
    if (unknown) id = unknown_;
    if (unknown && after_unknown && fuse_unknown_) continue;
    after_unknown = unknown;
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({*id, index - 1, index + 1});
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

void Bpe::merge_all(std::vector<Symbol>& symbols) const {
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left) {
    const Symbol& symbol = symbols[static_cast<std::size_t>(left)];
    if (symbol.next < 0) return;
    const auto found = merges_.find(pair_key(symbol.id, symbols[static_cast<std::size_t>(symbol.next)].id));
    if (found != merges_.end()) queue.push({found->second.rank, left, found->second.id});
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<std::size_t>(top.position)];
    if (!left.alive || left.next < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    // Either side may have been merged since; the candidate stands if the pair still makes the same token.
    const auto found = merges_.find(pair_key(left.id, right.id));
    if (found == merges_.end() || found->second.id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.alive = false;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = top.position;
    if (left.previous >= 0) consider(left.previous);
    consider(top.position);
  }
}

void Bpe::encode(std::string_view piece, std::vector<int64_t>& ids) const {
  if (piece.empty()) return;
  if (ignore_merges_) {
    if (const std::optional<int32_t> id = vocabulary_.id(piece)) {
      ids.push_back(*id);
      return;
    }
  }
  if (from_cache(piece, ids)) return;
  const std::size_t first = ids.size();
  std::vector<Symbol> symbols = symbols_of(piece);
  merge_all(symbols);
  for (const Symbol& symbol : symbols)
    if (symbol.alive) ids.push_back(symbol.id);
  to_cache(piece, ids, first);
}

bool Bpe::from_cache(std::string_view piece, std::vector<int64_t>& ids) const {
  if (piece.size() > kMaxCachedBytes) return false;
  const std::lock_guard lock(mutex_);
  const auto found = cache_.find(piece);
  if (found == cache_.end()) return false;
  ids.insert(ids.end(), found->second.begin(), found->second.end());
  return true;
}

void Bpe::to_cache(std::string_view piece, const std::vector<int64_t>& ids, std::size_t first) const {
  if (piece.size() > kMaxCachedBytes) return;
  const std::lock_guard lock(mutex_);
  if (cache_.size() < kMaxCachedPieces)
    cache_.try_emplace(std::string(piece), ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end());
}

}  // namespace trainer::text
