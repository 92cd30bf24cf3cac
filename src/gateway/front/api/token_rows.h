// Rows of token ids made in front of a model, where the caller must know them: one row for each text, or several for a
// long one. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/front/api/common.h"

namespace arlo::gateway {

using TokenRows = std::vector<std::vector<std::int64_t>>;

// INVALID_ARGUMENT: the model takes no text, and why.
MaybeFault check_text(const ModelSpec& model);

// The tokens of texts, each behind `prompt`; see encode_texts().
MaybeFault encode_behind(const TextSpec& spec, std::string_view prompt, const std::vector<std::string>& texts,
                         const text::Limits& limits, text::Job* job, std::vector<text::Encoding>* out);

// With their special tokens, as `wishes` wants them cut. INVALID_ARGUMENT: the model takes no text, or one is too long.
MaybeFault tokenize(const ModelSpec& model, std::string_view prompt, const std::vector<std::string>& texts,
                    const TextWishes& wishes, text::Job* job, TokenRows* out);

// Each text whole, in as many rows as it takes: windows of what the model takes, or of what `wishes` allow, each with
// the last eighth of the one before. `pieces`: how many rows each text has. INVALID_ARGUMENT: above `most_rows`.
MaybeFault tokenize_whole(const ModelSpec& model, std::string_view prompt, const std::vector<std::string>& texts,
                          const TextWishes& wishes, std::size_t most_rows, text::Job* job, TokenRows* out,
                          std::vector<std::size_t>* pieces);

// The tensors of ids and mask. INVALID_ARGUMENT: a row has more tokens than the model takes (all are as wide as the
// widest, so that few bytes could ask for very many), or it is not the model's.
MaybeFault add_ids(const ModelSpec& model, const TokenRows& rows, inference::ModelInferRequest* out);

}  // namespace arlo::gateway
