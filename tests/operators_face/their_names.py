"""The public names of nvidia-cutlass-operators 0.3.0 by module.

``python tests/support/operator_names.py cutlass.operators FILE`` writes this file where it is
installed.
"""

THEIRS = {
    "": """
        ArchPortability CompiledArtifact CuTeDSLProvider DenseTensor EpilogueArguments GemmArguments
        GlobalOptions GroupedGemmArguments Heuristic IndexPtrGroupedGemmArguments Load Manifest
        NumericLike Operand Operator OperatorMetadata PerformanceControls Provider RuntimeArguments
        ScaleMode ScaleSwizzleMode ScaledOperand Status Store TargetSm TensorLike Transport
        available_heuristics available_providers get_heuristic get_operators mma register_heuristic
        register_provider workspace
    """,
    "arch": """
        ArchPortability TargetSm
    """,
    "arguments": """
        DenseTensor EpilogueArguments GemmArguments GemmProblemSize GroupedGemmArguments
        IndexPtrGroupedGemmArguments IndexPtrGroupedGemmProblemSize Load Operand PerformanceControls
        RuntimeArguments ScaleMode ScaleSwizzleMode ScaledOperand Store Transport
    """,
    "arguments.base": """
        Operand PerformanceControls RuntimeArguments
    """,
    "arguments.epilogue": """
        EpilogueArguments Load Store Transport
    """,
    "arguments.gemm": """
        GemmArguments GemmProblemSize
    """,
    "arguments.grouped_gemm": """
        GroupedGemmArguments IndexPtrGroupedGemmArguments IndexPtrGroupedGemmProblemSize
    """,
    "arguments.operand": """
        DenseTensor ScaleMode ScaleSwizzleMode ScaledOperand
    """,
    "artifact": """
        CompiledArtifact
    """,
    "base": """
        Operator
    """,
    "config": """
        GlobalOptions
    """,
    "fusion": """
        EmptyTensor trace trace_in_out
    """,
    "fusion.activation": """
        gelu hardswish identity leaky_relu relu sigmoid silu tanh
    """,
    "fusion.evt_ops": """
        exp max maximum minimum multiply_add permute reshape sum
    """,
    "heuristics": """
        Heuristic NvMatmulHeuristics available_heuristics get_heuristic register_heuristic
    """,
    "heuristics.base": """
        Heuristic available_heuristics get_heuristic register_heuristic
    """,
    "heuristics.nvmatmul": """
        MIN_NVMMH_VERSION NvMatmulHeuristics is_available
    """,
    "heuristics.nvmatmul.ranker": """
        MIN_NVMMH_VERSION NvMatmulHeuristics is_available
    """,
    "manifest": """
        Manifest
    """,
    "metadata": """
        BLASDesignMetadata CLCDynamicPersistentTileSchedulerMetadata DenseTensorConstraints
        DesignMetadata EpilogueMetadata GemmOperandsMetadata GroupedGemmOperandsMetadata
        IndexPtrGroupedGemmOperandsMetadata OperandConstraints OperandsMetadata OperatorMetadata
        ScaledOperandConstraints Sm100DesignMetadata Sm107DesignMetadata
        StaticPersistentTileSchedulerMetadata TileSchedulerMetadata
    """,
    "metadata.base": """
        OperatorMetadata
    """,
    "metadata.design": """
        BLASDesignMetadata CLCDynamicPersistentTileSchedulerMetadata DesignMetadata
        Sm100DesignMetadata Sm107DesignMetadata StaticPersistentTileSchedulerMetadata
        TileSchedulerMetadata
    """,
    "metadata.design.base": """
        BLASDesignMetadata DesignMetadata
    """,
    "metadata.design.sm100": """
        Sm100DesignMetadata
    """,
    "metadata.design.sm107": """
        Sm107DesignMetadata
    """,
    "metadata.design.tile_scheduler": """
        CLCDynamicPersistentTileSchedulerMetadata StaticPersistentTileSchedulerMetadata
        TileSchedulerMetadata
    """,
    "metadata.epilogue": """
        EpilogueMetadata
    """,
    "metadata.operand_constraints": """
        DenseTensorConstraints OperandConstraints ScaledOperandConstraints
    """,
    "metadata.operands": """
        GemmOperandsMetadata GroupedGemmOperandsMetadata IndexPtrGroupedGemmOperandsMetadata
        OperandsMetadata
    """,
    "metadata.operands.base": """
        OperandsMetadata
    """,
    "metadata.operands.gemm": """
        GemmOperandsMetadata
    """,
    "metadata.operands.grouped_gemm": """
        GroupedGemmOperandsMetadata IndexPtrGroupedGemmOperandsMetadata
    """,
    "mma": """
        AmpereMma BlackwellTcgen05Mma BlackwellTcgen05MmaSparse HopperWgmma MmaInstruction
        RubinTcgen05Mma
    """,
    "providers": """
        CuTeDSLProvider Provider available_providers register_provider
    """,
    "providers.cutedsl": """
        CuTeDSLProvider CuteDslOperator
    """,
    "providers.cutedsl.operator": """
        CuteDslOperator
    """,
    "providers.provider": """
        Provider
    """,
    "status": """
        Status
    """,
    "typing": """
        NumericLike TensorLike
    """,
    "utils": """
        common device dtype gemm generate layout tensor
    """,
    "utils.common": """
        ceil_div is_jax_available is_numpy_available is_torch_available round_up tuple_to_string
    """,
    "utils.device": """
        check_cuda_errors device_cc device_l2_cache_size device_or_env_supports
        device_or_env_target_sm get_cuda_version to_cuda_stream
    """,
    "utils.dtype": """
        cutlass_type_from_jax_type cutlass_type_from_torch_type get_jax_to_cutlass_dtype_map
        get_torch_to_cutlass_dtype_map jax_type_from_cutlass_type to_cutlass_type
        torch_storage_packing_factor torch_type_from_cutlass_type
    """,
    "utils.gemm": """
        strip_batch_mode tensor_output_shape_matches tensor_rank_2_or_3
        tensor_reduction_mode_matches
    """,
    "utils.generate": """
        construct_dense_gemm_operands
    """,
    "utils.layout": """
        LayoutType TupleRank2Or3 normalized_col_major normalized_row_major
    """,
    "utils.tensor": """
        TensorWrapper get_stride_order get_stride_rank is_jax_array is_numpy_tensor
        is_torch_fake_tensor is_torch_tensor major_mode major_mode_from_tensor
        normalized_major_stride pre_shuffle_int4_a strides_to_layout_string
    """,
    "workspace": """
        AllocationRequirement Workspace
    """,
}
THEIRS_BY_MODULE = {module: names.split() for module, names in THEIRS.items()}
