// Rows of token ids made before the model is called, if the caller must know them: one row per text, or several for a
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

// INVALID_ARGUMENT: the model takes no text; the message says why.
MaybeFault check_text(const ModelSpec& model);

// Tokenises texts, each prefixed by `prompt`; see encode_texts().
MaybeFault encode_behind(const TextSpec& spec, std::string_view prompt, const std::vector<std::string>& texts,
                         const text::Limits& limits, text::Job* job, std::vector<text::Encoding>* out);

// Adds special tokens and truncates by `wishes`. INVALID_ARGUMENT: the model takes no text, or one is too long.
MaybeFault tokenize(const ModelSpec& model, std::string_view prompt, const std::vector<std::string>& texts,
                    const TextWishes& wishes, text::Job* job, TokenRows* out);

// Splits each text into as many rows as needed: windows of the model's length or that of `wishes`, each repeating the
// last eighth of the previous one. `pieces`: rows per text. INVALID_ARGUMENT: above `most_rows`.
MaybeFault tokenize_whole(const ModelSpec& model, std::string_view prompt, const std::vector<std::string>& texts,
                          const TextWishes& wishes, std::size_t most_rows, text::Job* job, TokenRows* out,
                          std::vector<std::size_t>* pieces);

// Adds the tensors of ids and mask. INVALID_ARGUMENT: a row has more tokens than the model takes (all are padded to the
// widest, so a few bytes could request very many), or an id is unknown to it.
MaybeFault add_ids(const ModelSpec& model, const TokenRows& rows, inference::ModelInferRequest* out);

}  // namespace arlo::gateway
