# Compiler settings of the whole tree. Presets choose the sanitizers (CMakePresets.json).
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
add_compile_definitions(_GNU_SOURCE)

set(HEARTH_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, comma-separated")
option(HEARTH_FUZZ "Link fuzz targets with libFuzzer (clang) instead of the corpus replayer" OFF)

include(CheckCCompilerFlag)
include(CheckLinkerFlag)

set(HEARTH_WARNINGS "")
foreach(flag
        -Wall -Wextra -Wshadow -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes
        -Wold-style-definition -Wundef -Wvla -Walloca -Wpointer-arith -Wwrite-strings -Wcast-qual
        -Wdouble-promotion -Wnull-dereference -Wdate-time -Wimplicit-fallthrough
        -Wformat-signedness -Wlogical-op -Wduplicated-cond -Wduplicated-branches
        -Wjump-misses-init -Wdangling-pointer=2 -Wuse-after-free=3
        -Werror=return-type -Werror=implicit-function-declaration
        -Werror=incompatible-pointer-types -Werror=int-conversion)
    string(MAKE_C_IDENTIFIER "have${flag}" have)
    check_c_compiler_flag(${flag} ${have})
    if(${have})
        list(APPEND HEARTH_WARNINGS ${flag})
    endif()
endforeach()
# Folders that handle foreign bytes add these (hearth_library(... STRICT)).
set(HEARTH_STRICT_WARNINGS -Wconversion -Wsign-conversion)

set(HEARTH_HARDENING "")
foreach(flag
        -fstack-protector-strong -fno-common -fno-strict-aliasing -fvisibility=hidden
        -fstack-clash-protection -ftrivial-auto-var-init=zero -fcf-protection
        -mbranch-protection=standard)
    string(MAKE_C_IDENTIFIER "have${flag}" have)
    check_c_compiler_flag(${flag} ${have})
    if(${have})
        list(APPEND HEARTH_HARDENING ${flag})
    endif()
endforeach()

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
if(NOT HEARTH_SANITIZE)
    list(APPEND HEARTH_HARDENING -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
endif()

# Sanitizer flags reach every target but hearth-init, which is static.
set(HEARTH_SANITIZE_FLAGS "")
if(HEARTH_SANITIZE)
    set(HEARTH_SANITIZE_FLAGS -fsanitize=${HEARTH_SANITIZE} -fno-sanitize-recover=undefined
        -fno-omit-frame-pointer)
endif()
if(HEARTH_FUZZ)
    list(APPEND HEARTH_SANITIZE_FLAGS -fsanitize=fuzzer-no-link)
endif()
