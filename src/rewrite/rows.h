// The rows of a request's tensors: how long each is, and how it is padded for a runtime. Pure; no wire format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/fault.h"
#include "rewrite/spec.h"

namespace arlo::gateway {

// `count` elements of `item` bytes, all of this value.
void fill_items(char* out, std::size_t count, std::size_t item, std::int64_t value);

// A token id; a negative one is a very high one.
std::uint64_t read_id(const char* at, std::size_t item);

// Returns a fault if one of the first `length` ids of a row is not in the model's vocabulary.
MaybeFault check_ids(const ModelSpec& model, const char* row_ids, std::int64_t row, std::int64_t length);

// Lengths of the rows of [rows, width] tensors: the position after the last non-zero of the mask; without one (null),
// all of the width. A fault for a row that the model does not take: too long, empty, or with an id that it does not
// have.
MaybeFault find_lengths(const ModelSpec& model, const char* ids, const char* mask, std::int64_t rows,
                        std::int64_t width, std::vector<std::int32_t>& lengths);

// One row of an input as a runtime takes it: its elements, and padding up to `tokens`. `from` null: the client sent
// none, so all tokens count (a mask) or the elements are the pad value.
void write_row(const InputSpec& spec, const char* from, std::size_t length, std::size_t tokens, char* out);

}  // namespace arlo::gateway
