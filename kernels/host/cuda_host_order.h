// In which order the blocks and threads of a launch run. Part of cuda_host.h.
//
// The environment variable LABKIT_HOST_ORDER chooses: "forward" is the order of the indices, "reverse" the
// opposite one, a number seeds a shuffle. With any of them the blocks run one after another, so that a launch does
// the same each time; without it they run in parallel. CUDA promises no order at all, so a right kernel gives the
// same result under each. A shuffle deals out whole warps, and the lanes within each: on a GPU a warp's lanes are
// never far from each other either.
#pragma once

#include <stdlib.h>

namespace cuda_host {

// One of LABKIT_HOST_ORDER's values, and the blocks of a launch in that order.
struct Schedule {
    enum Kind : unsigned char { free, forward, reverse, shuffled } kind = free;
    unsigned long long seed = 0, factor = 1, blocks = 1;

    explicit Schedule(unsigned long long number_of_blocks) : blocks(number_of_blocks) {
        const char* chosen = getenv("LABKIT_HOST_ORDER");
        if (!chosen || !*chosen) return;
        kind = *chosen == 'f' ? forward : *chosen == 'r' ? reverse : shuffled;
        if (kind != shuffled) return;
        seed = strtoull(chosen, nullptr, 10);
        // Multiplying by a number without a common divisor visits each block once.
        for (factor = mix(seed) % blocks | 1; common_divisor(factor, blocks) != 1;) factor += 2;
    }

    unsigned long long block(unsigned long long k) const {
        if (kind == reverse) return blocks - 1 - k;
        if (kind != shuffled) return k;
        return static_cast<unsigned long long>((static_cast<unsigned __int128>(k) * factor + seed) % blocks);
    }

    // A number that depends on all bits of x (the finalizer of splitmix64, by Sebastiano Vigna).
    static unsigned long long mix(unsigned long long x) {
        x += 0x9e3779b97f4a7c15;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
        x = (x ^ x >> 27) * 0x94d049bb133111eb;
        return x ^ x >> 31;
    }

  private:
    static unsigned long long common_divisor(unsigned long long a, unsigned long long b) {
        return b ? common_divisor(b, a % b) : a;
    }
};

// The threads of one block, and the lanes of its warps, in the order of the launch's schedule.
class Order {
  public:
    void begin_block(const Schedule& schedule, unsigned long long block, unsigned threads) {
        kind_ = schedule.kind;
        threads_ = threads;
        state_ = Schedule::mix(schedule.seed) ^ Schedule::mix(block);
        shuffle();
    }

    // Draws the next shuffle: each barrier lets the threads go on in another order.
    void shuffle() {
        if (kind_ != Schedule::shuffled) return;
        unsigned char warps[max_threads / warp_size];
        const unsigned count = (threads_ + warp_size - 1) / warp_size;
        deal(warps, count);
        unsigned next = 0;
        for (unsigned w = 0; w < count; ++w) {
            deal(lanes_, warp_size);
            for (const unsigned char lane : lanes_)
                if (warps[w] * warp_size + lane < threads_)
                    shuffled_[next++] = static_cast<unsigned short>(warps[w] * warp_size + lane);
        }
    }

    // Which thread comes k-th, and which lane of a warp.
    unsigned thread(unsigned k) const {
        if (kind_ == Schedule::shuffled) return shuffled_[k];
        return kind_ == Schedule::reverse ? threads_ - 1 - k : k;
    }
    unsigned lane(unsigned k) const {
        if (kind_ == Schedule::shuffled) return lanes_[k];
        return kind_ == Schedule::reverse ? warp_size - 1 - k : k;
    }

  private:
    void deal(unsigned char* cards, unsigned count) {  // Fisher and Yates
        for (unsigned i = 0; i < count; ++i) {
            state_ = Schedule::mix(state_);
            const unsigned j = static_cast<unsigned>(state_ % (i + 1));
            cards[i] = cards[j];
            cards[j] = static_cast<unsigned char>(i);
        }
    }

    Schedule::Kind kind_ = Schedule::free;
    unsigned threads_ = 0;
    unsigned long long state_ = 0;
    unsigned char lanes_[warp_size];
    unsigned short shuffled_[max_threads];
};

}  // namespace cuda_host
