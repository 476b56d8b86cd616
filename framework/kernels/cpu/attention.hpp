/// @file Attention on the CPU, in tiles of scores that no memory sees; products are the caller's.
/// Numbers are summed in fp32; weights are rounded to the type that is multiplied. After LibTorch's
/// native/cpu/FlashAttentionKernel.cpp, which keeps the same. Included by level.cpp alone.
#pragma once

#include <kernels/cpu.hpp>
#include <kernels/cpu/attention_buffers.hpp>
#include <kernels/cpu/exponential.hpp>
#include <kernels/cpu/transpose.hpp>

#include <cmath>
#include <limits>
#include <type_traits>

namespace trainer::kernels {
namespace {

/// e^x, and no number where x is none: whoever looks for the readers of a value does it with such.
TRAINER_INLINE Floats weight_of(Floats x) { return select(x == x, exponential(x), x); }

/// Of data of type T; M is what is multiplied: T, or fp32 for bf16.
template <typename T, typename M = T>
struct AttentionHeads {
  using P = Pack<T>;
  using Q = Pack<M>;
  using F = Pack<float>;

  template <typename Part>
  static const Part* row_of(const HeadsIn& heads, int64_t sample, int64_t head) {
    return static_cast<const Part*>(heads.data) + sample * heads.sample + head * heads.head;
  }
  template <typename Part>
  static Part* row_of(const HeadsOut& heads, int64_t sample, int64_t head) {
    return static_cast<Part*>(heads.data) + sample * heads.sample + head * heads.head;
  }

  static void forward(const Attention& a, HeadsOut y, HeadsOut log_sums, void* memory, int64_t begin, int64_t end) {
    const ForwardBuffers<M> b(a, Carve(memory));
    const int64_t tiles = units_of(a) / (a.samples * a.heads);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t sample = unit / tiles / a.heads, head = unit / tiles % a.heads;
      if (unit == begin || unit % tiles == 0)
        pack_keys(a, b, row_of<T>(a.k, sample, head), row_of<T>(a.v, sample, head));
      const int64_t first = unit % tiles * b.tile.queries, rows = std::min(b.tile.queries, a.queries - first);
      attend(a, b, sample, head, first, rows, row_of<T>(y, sample, head) + first * y.token, y.token,
             row_of<float>(log_sums, sample, head) + first * log_sums.token, log_sums.token);
    }
  }

  static void pack_keys(const Attention& a, const ForwardBuffers<M>& b, const T* k, const T* v) {
    for (int64_t first = 0; first < a.keys; first += b.tile.keys) {
      const int64_t keys = std::min(b.tile.keys, a.keys - first);
      to_columns(k + first * a.k.token, a.k.token, keys, a.width, b.k + first * a.width);
      to_pairs(v + first * a.v.token, a.v.token, keys, a.width, b.v + first * a.width);
    }
  }

  /// One tile of queries against all keys.
  static void attend(const Attention& a, const ForwardBuffers<M>& b, int64_t sample, int64_t head, int64_t first_row,
                     int64_t rows, T* y, int64_t y_step, float* log_sums, int64_t log_step) {
    float highest[kForwardTile.queries], sum[kForwardTile.queries];
    const Rows q = multiplied(row_of<T>(a.q, sample, head) + first_row * a.q.token, a.q.token, rows, a.width, b.q);
    const T* const mask = a.mask.data == nullptr ? nullptr : row_of<T>(a.mask, sample, head) + first_row * a.mask.token;
    for (int64_t first = 0; first < a.keys && (!a.causal || first < first_row + rows); first += b.tile.keys) {
      const int64_t keys = std::min(b.tile.keys, a.keys - first);
      a.multiply(dtype(), rows, keys, a.width, q.step, keys, b.columns, false, q.data, b.k + first * a.width, b.scores);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t seen = a.causal ? std::clamp<int64_t>(first_row + row + 1 - first, 0, keys) : keys;
        weigh(a, b, row, keys, seen, mask == nullptr ? nullptr : mask + row * a.mask.token + first, first == 0,
              highest[row], sum[row]);
      }
      a.multiply(dtype(), rows, a.width, paired<M>(keys), b.columns, a.width, a.width, first > 0, b.weights,
                 b.v + first * a.width, b.sums);
    }
    for (int64_t row = 0; row < rows; ++row) {
      const float factor = sum[row] == 0 ? 0 : 1 / sum[row];
      for_row<F::kLanes>(a.width, [&](int64_t i, auto count) {
        store<P>(y + row * y_step + i, load<F>(b.sums + row * a.width + i, count) * factor, count);
      });
      log_sums[row * log_step] = highest[row] + std::log(sum[row]);
    }
  }

  static constexpr Dtype dtype() { return sizeof(M) == 2 ? Dtype::bf16 : Dtype::f32; }
  struct Rows {
    const M* data;
    int64_t step;
  };
  /// Rows as they are multiplied: themselves, or widened into `to`.
  static Rows multiplied(const T* from, int64_t step, int64_t rows, int64_t width, M* to) {
    if constexpr (std::is_same_v<T, M>) {
      return {from, step};
    } else {
      to_pairs(from, step, rows, width, to);
      return {to, width};
    }
  }

  /// Scores of a query to weights, relative to the highest score so far; what was summed before is made to fit. The
  /// first `seen` keys count, the rest weigh nothing.
  static void weigh(const Attention& a, const ForwardBuffers<M>& b, int64_t row, int64_t keys, int64_t seen,
                    const T* mask, bool is_first, float& highest, float& sum) {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    float* const scores = b.scores + row * b.columns;
    M* const weights = b.weights + row * b.columns;
    const auto scale = static_cast<float>(a.scale);
    Floats top = all<Floats>(kLowest);
    for_row<F::kLanes>(seen, [&](int64_t i, auto count) {
      Floats x = load<F>(scores + i, count) * scale;
      if (mask != nullptr) {
        x = x + load<P>(mask + i, count);
        store<F>(scores + i, x, count);
      }
      top = select((lanes<F>(count) > 0) & (x > top), x, top);
    });
    const float most = joined(top, [](auto a, auto b) { return larger(a, b); });
    const float above = is_first ? most : std::max(highest, most);
    const float from = above == kLowest ? 0 : above, factor = mask != nullptr ? 1 : scale;
    Floats total{};
    for_row<F::kLanes>(seen, [&](int64_t i, auto count) {
      const Floats x = load<F>(scores + i, count);
      Floats p = weight_of(x * factor - from) * lanes<F>(count);
      if (mask != nullptr) p = select(x == kLowest, Floats{}, p);
      total += p;
      store<Q>(weights + i, p, count);
    });
    for (int64_t i = seen; i < paired<M>(keys); ++i) weights[i] = M{};
    const float kept = is_first || highest == kLowest ? 0 : std::exp(highest - above);
    if (!is_first && highest < above)
      for_row<F::kLanes>(a.width, [&](int64_t i, auto count) {
        float* const sums = b.sums + row * a.width + i;
        store<F>(sums, load<F>(sums, count) * kept, count);
      });
    sum = kernels::sum(total) + (is_first ? 0 : sum * kept);
    highest = above;
  }

  static void backward(const Attention& a, const AttentionGrad& g, void* memory, int64_t begin, int64_t end) {
    const BackwardBuffers<M> b(a, Carve(memory));
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t sample = unit / a.heads, head = unit % a.heads;
      pack_queries(a, g, b, sample, head);
      for (int64_t first = 0; first < a.keys; first += b.tile.keys)
        one_tile_of_keys(a, g, b, sample, head, first, std::min(b.tile.keys, a.keys - first));
      T* const grad_q = row_of<T>(g.q, sample, head);
      for (int64_t first = 0; first < a.queries; first += b.tile.queries) {
        const int64_t rows = std::min(b.tile.queries, a.queries - first);
        const float* const from = b.grad_q + first * a.width;  // [width, rows]
        transpose(
            a.width, rows, [&](int64_t i, int64_t row, int64_t n) { return load_words(from + i * rows + row, n); },
            [&](int64_t row, int64_t i, Words v, int64_t n) {
              P::store(grad_q + (first + row) * g.q.token + i, bits_as<Floats>(v), n);
            });
      }
    }
  }

  static void pack_queries(const Attention& a, const AttentionGrad& g, const BackwardBuffers<M>& b, int64_t sample,
                           int64_t head) {
    const T* const q = row_of<T>(a.q, sample, head);
    const T* const grad = row_of<T>(g.grad, sample, head);
    const T* const y = row_of<T>(g.y, sample, head);
    for (int64_t first = 0; first < a.queries; first += b.tile.queries) {
      const int64_t rows = std::min(b.tile.queries, a.queries - first), at = first * a.width;
      to_columns(q + first * a.q.token, a.q.token, rows, a.width, b.q_columns + at);
      to_columns(grad + first * g.grad.token, g.grad.token, rows, a.width, b.grad_columns + at);
      to_pairs(q + first * a.q.token, a.q.token, rows, a.width, b.q_rows + at);
      to_pairs(grad + first * g.grad.token, g.grad.token, rows, a.width, b.grad_rows + at);
    }
    for (int64_t row = 0; row < a.queries; ++row) {
      Floats total{};
      for_row<F::kLanes>(a.width, [&](int64_t i, auto count) {
        total += load<P>(grad + row * g.grad.token + i, count) * load<P>(y + row * g.y.token + i, count);
      });
      b.dots[row] = kernels::sum(total);
      b.log_sums[row] = row_of<float>(g.log_sums, sample, head)[row * g.log_sums.token];
    }
  }

  /// All that this tile of keys gives and gets.
  static void one_tile_of_keys(const Attention& a, const AttentionGrad& g, const BackwardBuffers<M>& b, int64_t sample,
                               int64_t head, int64_t first_key, int64_t keys) {
    const T* const k = row_of<T>(a.k, sample, head) + first_key * a.k.token;
    const T* const v = row_of<T>(a.v, sample, head) + first_key * a.v.token;
    to_plain_columns(k, a.k.token, keys, a.width, b.k_columns);
    const Rows k_rows = multiplied(k, a.k.token, keys, a.width, b.k),
               v_rows = multiplied(v, a.v.token, keys, a.width, b.v);
    for (int64_t first = 0; first < a.queries; first += b.tile.queries) {
      const int64_t rows = std::min(b.tile.queries, a.queries - first), at = first * a.width;
      a.multiply(dtype(), keys, rows, a.width, k_rows.step, rows, b.columns, false, k_rows.data, b.q_columns + at,
                 b.scores);
      a.multiply(dtype(), keys, rows, a.width, v_rows.step, rows, b.columns, false, v_rows.data, b.grad_columns + at,
                 b.grad_weights);
      weights_and_gradients(a, b, first, rows, keys);
      a.multiply(dtype(), keys, a.width, paired<M>(rows), b.columns, a.width, a.width, first > 0, b.weights,
                 b.grad_rows + at, b.grad_v);
      a.multiply(dtype(), keys, a.width, paired<M>(rows), b.columns, a.width, a.width, first > 0, b.grad_scores,
                 b.q_rows + at, b.grad_k);
      a.multiply(dtype(), a.width, rows, paired<M>(keys), paired<M>(keys), sizeof(M) == 2 ? rows : b.columns, rows,
                 first_key > 0, b.k_columns, b.paired_grad_scores, b.grad_q + at);
    }
    T* const grad_k = row_of<T>(g.k, sample, head) + first_key * g.k.token;
    T* const grad_v = row_of<T>(g.v, sample, head) + first_key * g.v.token;
    for (int64_t row = 0; row < keys; ++row)
      for_row<F::kLanes>(a.width, [&](int64_t i, auto count) {
        store<P>(grad_k + row * g.k.token + i, load<F>(b.grad_k + row * a.width + i, count), count);
        store<P>(grad_v + row * g.v.token + i, load<F>(b.grad_v + row * a.width + i, count), count);
      });
  }

  /// p = e^(scale s - log sum) and p (grad p - dot) scale; keys are rows.
  static void weights_and_gradients(const Attention& a, const BackwardBuffers<M>& b, int64_t first, int64_t rows,
                                    int64_t keys) {
    const auto scale = static_cast<float>(a.scale);
    const auto one = [&](int64_t key, int64_t i, auto count) {
      const int64_t at = key * b.columns + i;
      const Floats p = weight_of(load<F>(b.scores + at, count) * scale - load<F>(b.log_sums + first + i, count));
      const Floats grad = p * (load<F>(b.grad_weights + at, count) - load<F>(b.dots + first + i, count)) * scale;
      store<Q>(b.weights + at, p, count);
      store<Q>(b.grad_scores + at, grad, count);
      return grad;
    };
    if constexpr (sizeof(M) == 4) {
      for (int64_t key = 0; key < keys; ++key)
        for_row<F::kLanes>(rows, [&](int64_t i, auto count) { one(key, i, count); });
    } else {
      for (int64_t key = 0; key < keys; key += 2)
        for_row<F::kLanes>(rows, [&](int64_t i, auto count) {
          const Halves low = Q::narrow(one(key, i, count));
          const Halves high = key + 1 < keys ? Q::narrow(one(key + 1, i, count)) : Halves{};
          store_words(b.paired_grad_scores + key * rows + 2 * i, pair(low, high), count);
        });
      for (int64_t key = 0; rows < paired<M>(rows) && key < keys; ++key)
        b.weights[key * b.columns + rows] = b.grad_scores[key * b.columns + rows] = M{};
    }
  }

  static void store_words(T* to, Words v, Whole) { store_some(to, v, 16); }
  static void store_words(T* to, Words v, int64_t count) { store_some(to, v, count); }
};

}  // namespace
}  // namespace trainer::kernels
